import pytest
from typer.testing import CliRunner

from runmanager import RunManager, console
from runmanager.cli.app import app
from tests.board.reading import train
from tests.screens import Terminal


@pytest.fixture
def command():
    """Call `runmanager` as in a terminal that is 80 wide."""

    def call(*arguments, **options):
        return CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(part) for part in arguments], **options)

    return call


@pytest.fixture
def terminal(monkeypatch):
    """Call `runmanager` in a terminal of a width: the lines of its screen, and the result."""

    def call(width, *arguments, color=True):
        shown = Terminal(width, color=color)
        with monkeypatch.context() as context:
            context.setattr(console, "wide_console", lambda: shown.console)
            result = CliRunner(env={"COLUMNS": str(width)}).invoke(app, [str(part) for part in arguments])
        call.screen = shown
        return shown.lines, result

    return call


@pytest.fixture
def root(tmp_path):
    """Two experiments: two runs that are completed and one that failed, and another with one run."""
    manager = RunManager("grid", tmp_path, display=False)
    for lr in (0.1, 0.01):
        train(manager, {"lr": lr, "device": "cpu"}, num_epochs=2)
    with pytest.raises(ZeroDivisionError):
        train(manager, {"lr": 0.5, "device": "cpu"}, at_end=lambda _: 1 / 0)
    train(RunManager("other", tmp_path, display=False), {"seed": 1})
    return tmp_path
