"""The panel at the end of a grid, for terminals, files and notebooks."""

import html
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from runmanager.answers.conclusion import Conclusion, Sentence
from runmanager.core.outcome import Status
from runmanager.core.wording import listed
from runmanager.drawing.console import cell_number, for_output
from runmanager.drawing.table import ENDLESS, Table, sign_color, signed, wrapped
from runmanager.tables.cells import join

_WIDEST = 120  # maximum number of characters in a line of text
_MOST_NAMED = 8  # maximum number of names of left-out columns
_INDENT = "  "
_RULE = "━"
_STYLE = "text-align: left; padding: 2px 12px 2px 0; font-size: inherit"


@dataclass(frozen=True, repr=False)
class Panel:
    """A conclusion that terminals and notebooks can render."""

    conclusion: Conclusion
    cell: int | None = None  # the notebook cell that already shows the panel

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width)

    def __repr__(self) -> str:
        return for_output("\n".join(line.plain.rstrip() for line in self.lines(_WIDEST)))

    def lines(self, width: int) -> list[Text]:
        """Return the lines; only a word that is longer than `width` makes a line longer."""
        content, of_text = self.conclusion, min(width, _WIDEST)
        lines = self._title(of_text)
        lines += map(Text, wrapped(content.note, of_text, "", _INDENT) if content.note else [])
        lines += _sentence(content.best, of_text, "bold")
        lines += _table(content.table, content.which, width) if content.table else []
        for problem in content.problems:
            lines += _sentence(problem, of_text)
        for name, fact in content.facts:
            lines += map(Text, wrapped(fact, of_text, f"{name:<8}", " " * 8))
        steps = [(command, f"  # {purpose}") for command, _, purpose in content.steps]
        longest = max((cell_len(command) for command, _ in steps), default=0)
        fits = all(8 + longest + len(purpose) <= width for _, purpose in steps)
        for index, (command, purpose) in enumerate(steps):
            padding = " " * (longest - cell_len(command))
            comment = f"{padding}{purpose}" if fits else ""
            lines.append(Text.assemble(f"{'' if index else 'next':<8}{command}", (comment, "dim")))
        return lines

    def _title(self, width: int) -> list[Text]:
        lines = [Text.assemble((f"{_RULE * 2} ", "dim"), (self.conclusion.folder, "bold"))]
        for status, number in self.conclusion.counts:
            count = f"{number:,} {status}"
            if lines[-1].cell_len + len(" · ") + cell_len(count) > width:
                lines.append(Text(_INDENT))
            lines[-1].append(" · ").append(count, sign_color(_mark(status)))
        room = width - lines[-1].cell_len - 1
        lines[-1].append(f" {_RULE * room}" if room > 0 and len(lines) == 1 else "", "dim")
        return lines

    def _repr_html_(self) -> str:
        if self.cell is not None and self.cell == cell_number():
            return ""
        content = self.conclusion
        counts = (signed(f"{number:,} {status}", _mark(status)) for status, number in content.counts)
        parts = [f"<p>{join([f'<b>{html.escape(content.folder)}</b>', *counts])}</p>"]
        parts += [f"<p>{html.escape(content.note)}</p>"] if content.note else []
        parts.append(_sentence_html(content.best, is_strong=True))
        if content.table:
            parts.append(content.table.to_html())
            parts.append(f"<p><small>{html.escape(content.which)}</small></p>" if content.which else "")
        parts += map(_sentence_html, content.problems)
        parts += [f"<p>{name}: {html.escape(fact)}</p>" for name, fact in content.facts]
        steps = (
            f'<tr><td style="{_STYLE}"><code>{html.escape(call)}</code></td>'
            f'<td style="{_STYLE}">{html.escape(purpose)}</td></tr>'
            for _, call, purpose in content.steps
        )
        return "\n".join([*parts, f"<table>{''.join(steps)}</table>"])


def _mark(status: str) -> str:
    if Status(status).is_success:
        return "✓" if status == Status.COMPLETED else ""
    return "✗" if Status(status).is_lost else "!"


def _sentence(sentence: Sentence, width: int, style: str = "") -> list[Text]:
    lines = [Text(line, style) for line in wrapped(sentence.text, width, f"{sentence.mark} ", _INDENT)]
    lines[0].stylize(f"not bold {sign_color(sentence.mark)}", 0, 1)
    return lines + [Text(line) for detail in sentence.details for line in wrapped(detail, width, _INDENT * 2)]


def _table(table: Table, which: str, width: int) -> list[Text]:
    """Return the lines of the columns that fit, and a line with the names of the others."""
    drawn, left_out = table.fitted(width - len(_INDENT) if width < ENDLESS else width)
    lines = [Text(_INDENT).append_text(line) for line in drawn]
    hidden = f"not shown: {listed(left_out, _MOST_NAMED)}" if left_out else ""
    if notes := "; ".join(filter(None, [which, hidden])):
        lines += [Text(line, "dim") for line in wrapped(f"({notes})", width, _INDENT)]
    return lines


def _sentence_html(sentence: Sentence, *, is_strong: bool = False) -> str:
    text = html.escape(sentence.text)
    lines = [
        f"{signed(sentence.mark, sentence.mark)} " + (f"<b>{text}</b>" if is_strong else text),
        *map(html.escape, sentence.details if sentence.in_notebook is None else sentence.in_notebook),
    ]
    return f"<p>{'<br>'.join(lines)}</p>"
