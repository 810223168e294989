import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from runmanager.cli.app import COMMANDS, app
from runmanager.cli.common import write_out
from runmanager.cli.declare import Answer, declare
from runmanager.cli.rows import Selection


def greet(name: str, *, times: int = 1, is_loud: bool = False, rows: Selection) -> Answer:
    """Greet somebody,
    in one line.

    For example:

      greet Ada

    Options:
        name (WHO): Who is greeted.
        times (N): How often, which is a long
            text.
        is_loud: In capitals.
        limit (MOST): At most so many.
    """
    text = " ".join([f"hello {name}"] * times)
    text = text.upper() if is_loud else text
    return Answer(
        lambda: write_out(f"{text} {rows.limit}"), lambda: {"text": text}, ["x"] if name == "" else []
    )


@pytest.fixture
def call():
    greeter = typer.Typer()
    greeter.callback()(lambda: None)
    declare(greeter, "greet", greet, "Panel")
    return lambda *arguments: CliRunner(env={"COLUMNS": "80"}).invoke(greeter, ["greet", *arguments])


def test_options_and_their_help_follow_from_signature_and_docstring(call):
    lines = [" ".join(line.strip("│ ").split()) for line in call("--help").stdout.splitlines()]

    assert "Greet somebody, in one line." in lines
    assert "greet Ada" in lines
    required = "WHO Who is greeted. [required]"  # with typer 0.26 behind the name of the parameter
    assert any(line.endswith(required) for line in lines)
    assert "--times N How often, which is a long text. [default: 1]" in lines
    assert "--is-loud In capitals." in lines
    assert "--limit -n MOST At most so many." in lines
    assert "--columns A,B Only these columns, in this order." in lines
    assert "--json Write JSON, for scripts." in lines
    assert not any("Options:" in line for line in lines)


def test_an_answer_is_shown_or_written_as_json(call):
    shown, written = call("Ada", "--times", "2", "-n", "7"), call("Ada", "--is-loud", "--json")

    assert (shown.stdout, shown.exit_code) == ("hello Ada hello Ada 7\n", 0)
    assert (written.stdout, written.exit_code) == ('{\n  "text": "HELLO ADA"\n}\n', 0)


def test_what_could_not_be_read_is_reported_after_the_answer(call):
    result = call("")

    assert (result.stdout, result.stderr, result.exit_code) == ("hello  None\n", "! x\n", 1)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("flags", [[], ["-OO"]])
def test_options_have_their_names_without_docstrings_too(flags):
    program = "from runmanager.cli.app import app; app()"
    command = [sys.executable, *flags, "-c", program, "list", "--all", "-n", "3", "--json", "nothing"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert done.returncode == 2
    assert done.stderr.startswith("runmanager: no folder 'nothing': ")


@pytest.mark.parametrize("name", [name for panel in COMMANDS.values() for name in panel])
def test_every_argument_and_option_has_a_help(name):
    commands: Any = typer.main.get_command(app)
    command = commands.commands[name]

    assert command.help
    assert [each.name for each in command.params if not each.help] == []
