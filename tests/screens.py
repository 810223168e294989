"""What a terminal shows, read back from the screen of an emulator."""

import io

import pyte
from rich.console import Console


class Terminal:
    """A terminal of a width, to which rich writes in colors."""

    def __init__(self, width: int, *, color: bool = True, height: int = 400) -> None:
        self.screen = pyte.Screen(width, height)
        self._file = io.StringIO()
        self.console = Console(
            file=self._file,
            width=width,
            force_terminal=True,
            color_system="standard" if color else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    @property
    def lines(self) -> list[str]:
        """What is on the screen, without the empty lines at its end."""
        self.screen.reset()
        pyte.Stream(self.screen).feed(self._file.getvalue().replace("\n", "\r\n"))
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip("\n").split("\n")

    def style_of(self, text: str) -> tuple[str, bool]:
        """Return the color of where a text begins, and whether it is bold."""
        row, line = next((row, line) for row, line in enumerate(self.lines) if text in line)
        character = self.screen.buffer[row][line.index(text)]
        return character.fg, character.bold
