"""A picture in colors that is drawn again whenever a screen shows it."""

import html
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from runmanager.console import encodable

_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT = 110, 100


class Part(NamedTuple):
    """A part of a line: text in a style of rich's."""

    text: str
    style: str = ""


class LivePicture:
    """What `Screen.show_below` shows of a grid; it is drawn line by line, in a width and a height."""

    def __init__(self, draw: Callable[[int, int], Sequence[Sequence[Part]]]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._draw(options.max_width, console.height):
            for part in line:
                yield Segment(encodable(part.text, console), console.get_style(part.style))
            yield Segment.line()

    def __repr__(self) -> str:
        lines = self._draw(_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT)
        return "\n".join("".join(part.text for part in line).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"
