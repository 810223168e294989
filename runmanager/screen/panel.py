"""The panel at the end of a grid, for terminals, files and notebooks."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from rich.console import Console, ConsoleOptions
from rich.text import Text

from runmanager.answers.conclusion import Conclusion, Sentence
from runmanager.core.outcome import Status
from runmanager.core.wording import listed
from runmanager.drawing.console import cell_number, for_output
from runmanager.drawing.table import HARD, sign_color, signed, wrapped

_WIDEST = 120  # maximum number of characters in a line of text
_MOST_NAMED = 8  # maximum number of names of left-out columns
_INDENT = "  "
_HEADING = 8  # width of the words in front of facts and next steps
_RULE = "━"


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
        counts = [(f"{number:,} {status}", _mark(status)) for status, number in content.counts]
        title = " · ".join([content.folder, *(count.replace(" ", HARD) for count, _ in counts)])
        lines = [Text(line) for line in wrapped(title, of_text, _RULE * 2 + " ", _INDENT)]
        for line in lines:
            line.highlight_words([content.folder], "bold")
            for count, mark in counts:
                line.highlight_words([count], sign_color(mark))
        if len(lines) == 1:
            lines[0].append(f" {_RULE * (of_text - lines[0].cell_len - 1)}", "dim")
        lines += map(Text, wrapped(content.note, of_text, "", _INDENT) if content.note else [])
        lines += _sentence(content.best, of_text, "bold")
        if content.table:
            rows, left_out = content.table.fitted(width - len(_INDENT))
            lines += [Text(_INDENT).append_text(row) for row in rows]
            hidden = f"not shown: {listed(left_out, _MOST_NAMED)}" if left_out else ""
            if notes := "; ".join(filter(None, [content.which, hidden])):
                lines += [Text(line, "dim") for line in wrapped(f"({notes})", width, _INDENT)]
        for problem in content.problems:
            lines += _sentence(problem, of_text)
        for name, fact in content.facts:
            lines += map(Text, wrapped(fact, of_text, f"{name:<{_HEADING}}", " " * _HEADING))
        longest = max((len(command) for command, _, _ in content.steps), default=0)
        for index, (command, _, purpose) in enumerate(content.steps):
            start, comment = f"{'' if index else 'next':<{_HEADING}}", f"  # {purpose}"
            fits = _HEADING + longest + len(comment) <= width
            lines.append(Text.assemble(start, f"{command:<{longest}}", (comment if fits else "", "dim")))
        return lines

    def _repr_html_(self) -> str:
        if self.cell is not None and self.cell == cell_number():
            return ""
        content = self.conclusion
        counts = [signed(f"{number:,} {status}", _mark(status)) for status, number in content.counts]
        parts = [" · ".join([f"<b>{escape(content.folder)}</b>", *counts]), escape(content.note)]
        parts.append(_sentence_html(content.best, is_strong=True))
        if content.table:
            parts += [
                content.table.to_html(),
                f"<small>{escape(content.which)}</small>" if content.which else "",
            ]
        parts += map(_sentence_html, content.problems)
        parts += [f"{name}: {escape(fact)}" for name, fact in content.facts]
        steps = [f"<code>{escape(call)}</code> {escape(purpose)}" for _, call, purpose in content.steps]
        parts.append("<br>".join(steps))
        return "\n".join(part if part.startswith("<div") else f"<p>{part}</p>" for part in parts if part)


def _mark(status: str) -> str:
    if Status(status).is_success:
        return "✓" if status == Status.COMPLETED else ""
    return "✗" if Status(status).is_lost else "!"


def _sentence(sentence: Sentence, width: int, style: str = "") -> list[Text]:
    lines = [Text(line, style) for line in wrapped(sentence.text, width, f"{sentence.mark} ", _INDENT)]
    lines[0].stylize(f"not bold {sign_color(sentence.mark)}", 0, 1)
    return lines + [Text(line) for detail in sentence.details for line in wrapped(detail, width, _INDENT * 2)]


def _sentence_html(sentence: Sentence, *, is_strong: bool = False) -> str:
    text, mark = escape(sentence.text), signed(sentence.mark, sentence.mark)
    details = sentence.details if sentence.in_notebook is None else sentence.in_notebook
    return "<br>".join([f"{mark} <b>{text}</b>" if is_strong else f"{mark} {text}", *map(escape, details)])
