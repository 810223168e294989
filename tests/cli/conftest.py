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


class InTerminal:
    """Calls `runmanager` in a terminal of a width; keeps the last one as `screen`."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.screen = Terminal(80)

    def __call__(self, width, *arguments):
        """Return the lines of the screen, and the result."""
        self.screen = Terminal(width)
        with self._monkeypatch.context() as context:
            context.setattr(console, "wide_console", lambda: self.screen.console)
            result = CliRunner(env={"COLUMNS": str(width)}).invoke(app, [str(part) for part in arguments])
        return self.screen.lines, result


@pytest.fixture
def terminal(monkeypatch):
    return InTerminal(monkeypatch)


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
