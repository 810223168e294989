"""The panel at the end of a grid, for terminals, files and notebooks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

from runmanager.answers.conclusion import Conclusion, Sentence
from runmanager.core.outcome import Status
from runmanager.core.wording import listed
from runmanager.drawing.console import NotebookLines, cell_number, colored
from runmanager.drawing.table import ENDLESS, sign_color, wrapped

_WIDEST = 110  # maximum number of characters in a line of text
_INDENT = "  "
_DETAIL = "    "
_HEADING = 8  # width of the words in front of facts and next steps


@dataclass(frozen=True, repr=False)
class Panel:
    """A conclusion that terminals and notebooks can render."""

    conclusion: Conclusion
    cell: int | None = None  # the notebook cell that already shows the panel

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width)

    def __repr__(self) -> str:
        return "\n".join(line.plain.rstrip() for line in self.lines(_WIDEST))

    def _repr_html_(self) -> str:
        if self.cell and self.cell == cell_number():
            return ""
        table = self.conclusion.table.to_html() if self.conclusion.table else ""
        above, below = self._above(ENDLESS), self._below(ENDLESS, [], is_page=True)
        return table.join(NotebookLines(lines, "inherit")._repr_html_() for lines in (above, below))

    def lines(self, width: int) -> list[Text]:
        """Return the lines; only a word that is longer than `width` makes a line longer."""
        table = self.conclusion.table
        rows, left_out = table.fitted(width - len(_INDENT)) if table else ([], [])
        rows = [Text(_INDENT).append_text(row) for row in rows]
        width = min(width, _WIDEST)
        return [*self._above(width), *rows, *self._below(width, left_out)]

    def _above(self, width: int) -> list[Text]:
        """Return the lines above the table: the title, the note, and the best setting."""
        content = self.conclusion
        counts = [f"{number:,} {status}" for status, number in content.counts]
        lines = [
            Text(line, "bold") for line in wrapped(" · ".join([content.folder, *counts]), width, "━━ ", _INDENT)
        ]
        for line in lines:
            for status, number in content.counts:
                line.highlight_words([f"{number:,} {status}"], sign_color(Status(status).sign) or "yellow")
        if width <= _WIDEST:
            lines[-1].append(f" {'━' * (width - lines[-1].cell_len - 1)}", "not bold")
        lines += map(Text, wrapped(content.note, width, "", _INDENT) if content.note else [])
        return lines + _sentence(content.best, width, content.best.details, "bold")

    def _below(self, width: int, left_out: Sequence[str], *, is_page: bool = False) -> list[Text]:
        """Return the lines below the table: the columns that are `left_out`, problems, facts and next steps."""
        content = self.conclusion
        lines: list[Text] = []
        hidden = f"not shown: {listed(left_out)}" if left_out else ""
        if notes := "; ".join(filter(None, [content.which, hidden])):
            lines += map(Text, wrapped(f"({notes})", width, _INDENT, _INDENT))
        for problem in content.problems:
            lines += _sentence(problem, width, (is_page and problem.in_notebook) or problem.details)
        for name, fact in content.facts:
            lines += map(Text, wrapped(fact, width, f"{name:<{_HEADING}}", " " * _HEADING))
        commands = [step[is_page] for step in content.steps]
        longest = max(map(len, commands))
        for command, (*_, purpose) in zip(commands, content.steps, strict=True):
            line = f"{'next' if command == commands[0] else '':<{_HEADING}}{command}"
            whole = f"{line:<{_HEADING + longest}}  # {purpose}"
            lines.append(Text(whole if len(whole) <= width else line))
        return lines


def _sentence(sentence: Sentence, width: int, details: Sequence[str], style: str = "") -> list[Text]:
    """Return the lines of a sentence, its sign in color, and below it the details."""
    lines = [colored(line, style) for line in wrapped(sentence.text, width, f"{sentence.mark} ", _INDENT)]
    return lines + [Text(line) for detail in details for line in wrapped(detail, width, _DETAIL, _DETAIL)]
