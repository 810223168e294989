import pytest
from rich.text import Text

from runmanager.console import choose_screen


class Wide:
    """Two lines, as wide as the terminal and a little narrower."""

    def __rich_console__(self, console, options):
        yield Text("a" * options.max_width)
        yield Text("b" * (options.max_width - 5), "bold")


@pytest.mark.parametrize(
    ("environment", "breaks_lines"), [({}, True), ({"XTERM_VERSION": "XTerm(390)"}, False)]
)
def test_a_terminal_that_is_made_narrower_keeps_no_line_of_the_picture_before(
    open_terminal, monkeypatch, environment, breaks_lines
):
    monkeypatch.delenv("TMUX", raising=False)
    terminal = open_terminal(120, **environment)
    screen, picture = choose_screen(show=True), Wide()
    screen.print(["above"])
    screen.show_below(picture)
    terminal.last_lines()

    for width in (50, 30, 70, 20):
        terminal.resize(width, 24, breaks_lines=breaks_lines)
        screen.print([f"at {width}"])
        screen.show_below(picture)
        lines = terminal.last_lines()
        assert lines[-2:] == ["a" * width, "b" * (width - 5)]
        assert lines[-3] == f"at {width}"
    screen.show_below(None)

    assert terminal.last_lines() == ["above", "at 50", "at 30", "at 70", "at 20"]
