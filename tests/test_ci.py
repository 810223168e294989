"""Scripts of CI: the measure of the package's size, whose figures only fall, and the list of skipped tests."""

import runpy
import sys
from pathlib import Path

import pytest

CI = Path(__file__).parents[1] / ".ci"
SIZE = runpy.run_path(str(CI / "size.py"))
FIGURES = {"all": 900, "text": 10, "unused": ["core"], "old": {"storage": 1000}, "new": {"core": 500}}


def test_documentation_types_and_line_breaks_do_not_count():
    short = "def double(x):\n    return 2 * x\n\n\nhalf: float = 0.5\n"
    long = (
        '"""Doubles."""\n\n\ndef double(x: int) -> int:\n    """Double it."""\n    # twice\n'
        '    return (\n        2 * x\n    )\n\n\nhalf: "int | float" = 0.5\n'
    )

    assert SIZE["measure"](short).nodes == SIZE["measure"](long).nodes == 8


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ({"storage": 1001}, ["storage", "1 above its figure 1,000", "delete"]),
        ({"storage": 969}, ["storage", "lower the figure to 969"]),
        ({"storage": 980, "core": 501}, ["core", "above its figure 500"]),
        ({"storage": 980, "hall": 1}, ["hall has no figure"]),
        ({"storage": 980, "text": 11}, ["text: 11, above its figure 10"]),
        ({"storage": 980, "core": 400}, []),  # which nothing uses
    ],
)
def test_a_figure_that_does_not_hold_is_named(nodes, words):
    text = nodes.pop("text", 0)
    folders = {name: SIZE["Size"](nodes=count) for name, count in nodes.items()}
    named = [row for row in SIZE["problems"](folders, {"text": text}, FIGURES) if not row.startswith("all:")]

    assert len(named) == bool(words)
    assert [word for word in words if word not in named[0]] == []


FILE = """<testsuites><testsuite>
<testcase name="a"><skipped type="pytest.skip" message="strace is not installed">a.py:1</skipped></testcase>
<testcase name="b"/>
<testcase name="c"><skipped type="pytest.skip" message="{}">b.py:1</skipped></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("reason", "code", "line"),
    [
        ("strace does not work here: EPERM", 0, "    1 default: strace does not work here: EPERM"),
        ("could not import 'ray'", 1, "!   1 default: could not import 'ray'"),
    ],
)
def test_a_skip_that_this_machine_does_not_explain_fails(tmp_path, monkeypatch, capsys, reason, code, line):
    (tmp_path / "default.xml").write_text(FILE.format(reason))

    monkeypatch.setattr(sys, "argv", [str(CI / "skips.py"), str(tmp_path / "default.xml")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(CI / "skips.py"), run_name="__main__")

    printed = capsys.readouterr().out
    assert ended.value.code == code
    assert f"2 tests were skipped, {code} for an unexpected reason" in printed
    assert line in printed.splitlines()
