"""The panel at the end of a grid, for terminals, files and notebooks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import starmap

from rich.console import Console, ConsoleOptions
from rich.text import Text

from runmanager.answers.conclusion import Conclusion, Sentence
from runmanager.core.outcome import Status
from runmanager.core.wording import listed
from runmanager.drawing.console import INDENT, cell_number, colored
from runmanager.drawing.table import GAP, sign_color, signed, wrapped

_WIDEST = 110  # maximum number of characters in a line of text
_CELL = '<td style="text-align: left; vertical-align: top; line-height: 1.5">'
_CODE = re.compile(r"(\w+\()+&quot;.+?&quot;\)+(\.\w+)?|retry_failed=True")  # of Python, in HTML


@dataclass(repr=False)
class Panel:
    """A conclusion that terminals and notebooks can render."""

    conclusion: Conclusion
    cell: int | None = 0  # the notebook cell that already shows the panel, from 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width)

    def __repr__(self) -> str:
        return "\n".join(line.plain for line in self.lines(_WIDEST))

    def _repr_html_(self) -> str:
        if self.cell == cell_number():
            return ""
        content = self.conclusion
        title = " · ".join([f"<b>{_html(content.folder)}</b>", *starmap(signed, self._counts().items())])
        steps = "\n".join(f"{call} {purpose}" for _, call, purpose in content.steps)
        parts = [
            f"<p>{title}<br>{_html(content.note)}</p>",
            _paragraph(content.best),
            content.table.to_html() if content.table else "",
            f"<p><small>{_html(content.which)}</small></p>",
            *map(_paragraph, content.problems),
            "<table>",
            *(
                f'<tr style="background: none">{_CELL}{name}</td>{_CELL}{_html(fact)}</td></tr>'
                for name, fact in (*content.facts, ("next", steps))
            ),
            "</table>",
        ]
        return "".join(parts)

    def _counts(self) -> dict[str, str]:
        """Return each number of runs, with the sign in whose color it is written."""
        counts = self.conclusion.counts
        return {f"{number:,} {status}": Status(status).sign.replace("·", "!") for status, number in counts}

    def lines(self, width: int) -> list[Text]:
        """Return the lines; only a word that is longer than `width` makes a line longer."""
        content = self.conclusion
        rows, left_out = content.table.fitted(width - len(GAP)) if content.table else ([], [])
        width = min(width, _WIDEST)
        title = " · ".join([content.folder, *self._counts()])
        lines = [Text(line, "bold") for line in wrapped(title, width, "━━ ", GAP)]
        for line in lines:
            for count, sign in self._counts().items():
                line.highlight_words([count], sign_color(sign))
        lines[-1].append(f" {'━' * (width - lines[-1].cell_len - 1)}", "not bold")
        lines += map(Text, wrapped(content.note, width, "", GAP) if content.note else [])
        lines += _sentence(content.best, width, "bold")
        lines += [Text(GAP).append_text(row) for row in rows]
        hidden = f"not shown: {listed(left_out)}" if left_out else ""
        if notes := "; ".join(filter(None, [content.which, hidden])):
            lines += map(Text, wrapped(f"({notes})", width, GAP, GAP))
        for problem in content.problems:
            lines += _sentence(problem, width)
        for name, fact in content.facts:
            lines += map(Text, wrapped(fact, width, f"{name:<8}", " " * 8))
        name = "next"
        longest = max(len(step[0]) for step in content.steps)
        for command, _, purpose in content.steps:
            whole = f"{name:<8}{command:<{longest}}  # {purpose}"
            lines.append(Text(whole if len(whole) <= width else f"{name:<8}{command}"))
            name = ""
        return lines


def _sentence(sentence: Sentence, width: int, style: str = "") -> list[Text]:
    """Return the lines of a sentence, its sign in color, and below it the details."""
    lines = [colored(line, style) for line in wrapped(sentence.text, width, f"{sentence.mark} ", GAP)]
    return lines + [
        Text(line) for detail in sentence.details for line in wrapped(detail, width, INDENT, INDENT)
    ]


def _paragraph(sentence: Sentence) -> str:
    """Return a sentence and its details for a notebook as HTML."""
    details = "\n".join(sentence.in_notebook or sentence.details)
    return f"<p>{signed(sentence.mark, sentence.mark)} <b>{_html(sentence.text)}</b><br>{_html(details)}</p>"


def _html(text: str) -> str:
    """Return text as HTML, with commands as code."""
    return _CODE.sub(r"<code>\g<0></code>", escape(text)).replace("\n", "<br>")
