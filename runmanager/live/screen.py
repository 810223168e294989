"""A picture in colors that is drawn again whenever a screen shows it."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT = 110, 100


class Part(NamedTuple):
    """A part of a line: text in a style of rich's."""

    text: str
    style: str = ""


class Drawn(Protocol):
    """What can be drawn as lines, and as HTML."""

    def draw(self, width: int, height: int) -> Sequence[Sequence[Part]]:
        """Return lines of at most `width` characters, at most `height` of them."""

    def to_html(self) -> str:
        """Return the same for a notebook."""


class LivePicture:
    """What `Screen.show_below` shows of a grid: a picture of the moment in which it is shown."""

    def __init__(self, picture: Callable[[], Drawn]) -> None:
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._picture().draw(options.max_width, console.height):
            for part in line:
                yield Segment(part.text, console.get_style(part.style))
            yield Segment.line()

    def __repr__(self) -> str:
        lines = self._picture().draw(_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT)
        return "\n".join("".join(part.text for part in line).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        return self._picture().to_html()
