"""The panel at the end of a grid, as a terminal, a file and a notebook show it."""

import html
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from runmanager.live.screen import Part
from runmanager.outcome import Status
from runmanager.results.conclusion import Conclusion, Sentence
from runmanager.table import MARKS, Table
from runmanager.wording import join

_WIDEST = 120  # characters of a line of text
_INDENT = "  "
_RULE = "━"
_HTML_COLORS = {"✓": "#2a9d55", "✗": "#d1495b", "!": "#c27c0e"}
_STYLE = "text-align: left; padding: 2px 12px 2px 0; font-size: inherit"


@dataclass(frozen=True)
class Panel:
    """A conclusion that consoles and notebooks can draw."""

    conclusion: Conclusion

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self.draw(options.max_width):
            for part in line:
                yield Segment(part.text, console.get_style(part.style))
            yield Segment.line()

    @property
    def headline(self) -> str:
        """What says the most."""
        return f"{self.conclusion.best.mark} {self.conclusion.best.text}"

    def __str__(self) -> str:
        return "\n".join("".join(part.text for part in line).rstrip() for line in self.draw(_WIDEST))

    def draw(self, width: int) -> list[list[Part]]:
        """Return the lines; only a word that is longer than `width` makes a line longer."""
        content, of_text = self.conclusion, min(width, _WIDEST)
        lines = self._title(of_text)
        lines += [[Part(line)] for line in _wrapped(content.note, of_text, "", _INDENT) if content.note]
        lines += _sentence(content.best, of_text, "bold")
        lines += _table(content.table, content.which, width) if content.table else []
        for problem in content.problems:
            lines += _sentence(problem, of_text)
        for name, fact in content.facts:
            lines += [[Part(line)] for line in _wrapped(fact, of_text, f"{name:<8}", " " * 8)]
        steps = [(step.command, f"  # {step.purpose}") for step in content.steps]
        longest = max((cell_len(command) for command, _ in steps), default=0)
        fits = all(8 + longest + len(purpose) <= width for _, purpose in steps)
        for index, (command, purpose) in enumerate(steps):
            padding = " " * (longest - cell_len(command))
            comment = [Part(padding + purpose, "dim")] if fits else []
            lines.append([Part(f"{'' if index else 'next':<8}{command}"), *comment])
        return lines

    def _title(self, width: int) -> list[list[Part]]:
        lines = [[Part(f"{_RULE * 2} ", "dim"), Part(self.conclusion.folder, "bold")]]
        room = width - cell_len(self.conclusion.folder) - 3
        for status, number in self.conclusion.counts:
            count = Part(f"{number:,} {status}", _color(status))
            room -= 3 + cell_len(count.text)
            if room < 0:
                lines.append([Part("  ")])
                room = width - 5 - cell_len(count.text)
            lines[-1] += [Part(" · "), count]
        lines[-1].append(Part(f" {_RULE * (room - 1)}" if room > 1 else "", "dim"))
        return lines

    def _repr_html_(self) -> str:
        content = self.conclusion
        counts = (
            f'<span style="color: {_HTML_COLORS.get(_mark(status), "inherit")}">{number:,} {status}</span>'
            for status, number in content.counts
        )
        parts = [f"<p>{join([f'<b>{html.escape(content.folder)}</b>', *counts])}</p>"]
        parts += [f"<p>{html.escape(content.note)}</p>"] if content.note else []
        parts.append(_sentence_html(content.best, is_strong=True))
        if content.table:
            parts.append(content.table.to_html())
            some = "" if content.which.startswith("all") else content.which
            parts.append(f"<p><small>{html.escape(some)}</small></p>" if some else "")
        parts += map(_sentence_html, content.problems)
        parts += [f"<p>{name}: {html.escape(fact)}</p>" for name, fact in content.facts]
        steps = (
            f'<tr><td style="{_STYLE}"><code>{html.escape(step.call)}</code></td>'
            f'<td style="{_STYLE}">{html.escape(step.purpose)}</td></tr>'
            for step in content.steps
        )
        return "\n".join([*parts, f"<table>{''.join(steps)}</table>"])


def _mark(status: str) -> str:
    if Status(status).is_success:
        return "✓" if status == Status.COMPLETED else ""
    return "✗" if Status(status).is_lost else "!"


def _color(status: str) -> str:
    return MARKS.get(_mark(status), "")


def _sentence(sentence: Sentence, width: int, style: str = "") -> list[list[Part]]:
    first, *others = _wrapped(sentence.text, width, _INDENT, _INDENT)
    lines = [[Part(f"{sentence.mark} ", MARKS.get(sentence.mark, "")), Part(first[len(_INDENT) :], style)]]
    lines += [[Part(line, style)] for line in others]
    return lines + [
        [Part(line)] for detail in sentence.details for line in _wrapped(detail, width, _INDENT * 2)
    ]


def _wrapped(content: str, width: int, first: str, others: str = "") -> list[str]:
    """Break text between words; `first` and `others` are in front of the lines."""
    others = others or first
    lines = [first]
    for word in content.split(" "):
        is_empty = lines[-1] in (first, others)
        if not is_empty and cell_len(f"{lines[-1]} {word}") > width:
            lines.append(f"{others}{word}")
        else:
            lines[-1] += word if is_empty else f" {word}"
    return lines


def _table(table: Table, which: str, width: int) -> list[list[Part]]:
    """Draw the columns that fit, and name the others."""
    fitted, left_out = table.fitted(width - len(_INDENT))
    drawn = fitted.drawn(width - len(_INDENT))
    lines = [[Part(_INDENT), *(Part(*piece) for piece in line)] for line in drawn]
    if left_out:
        which = f"{which}; not shown: {', '.join(left_out)}"
    if left_out or not which.startswith("all"):
        lines += [[Part(line, "dim")] for line in _wrapped(f"({which})", width, _INDENT)]
    return lines


def _sentence_html(sentence: Sentence, *, is_strong: bool = False) -> str:
    color = _HTML_COLORS.get(sentence.mark, "inherit")
    text = html.escape(sentence.text)
    lines = [
        f'<span style="color: {color}">{sentence.mark}</span> ' + (f"<b>{text}</b>" if is_strong else text),
        *map(html.escape, sentence.details if sentence.in_notebook is None else sentence.in_notebook),
    ]
    return f"<p>{'<br>'.join(lines)}</p>"
