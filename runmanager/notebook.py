"""What a notebook shows below a cell: lines, folded if they are many, and content replaced in place."""

import re
from collections.abc import Sequence
from typing import Any

from runmanager.markup import marked

_COMPLETED = re.compile(r"✓ +\d+/")  # how the line of a completed run begins
_OTHER = re.compile(r"[✗–] +\d+/")  # noqa: RUF001 - and that of another run; indented lines explain it
_INDENT = "    "
_MOST_RUNS = 8  # of either kind, before they are folded
_STYLE = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; font-family: monospace"


class InPlace:
    """Content below a notebook's cell that is replaced where it was shown first."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, content: Any) -> None:
        """Show content, in place of what was shown before."""
        from IPython.display import display

        if self.handle is None:
            self.handle = display(content, display_id=True)
        else:
            self.handle.update(content)


class Lines:
    """Lines as a notebook shows them: of many runs the last ones; once all is over, they are folded."""

    def __init__(self, lines: Sequence[str], *, is_over: bool = True) -> None:
        self._lines = list(lines)
        self._is_over = is_over

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        before: list[str] = []
        after: list[str] = []
        completed: list[list[str]] = []
        others: list[list[str]] = []  # each with the lines that explain it
        last = before
        for line in self._lines:
            if _COMPLETED.match(line) or _OTHER.match(line):
                last = [line]
                (completed if _COMPLETED.match(line) else others).append(last)
            elif last in others and line.startswith(_INDENT):
                last.append(line)
            else:
                last = after if completed or others else before
                last.append(line)
        if max(len(completed), len(others)) <= _MOST_RUNS:
            return _pre(self._lines)
        of_completed = self._of_runs(completed, "completed runs")
        of_others = self._of_runs(others, "runs not completed")
        if self._is_over:
            return f"{_pre(before)}{of_completed}{of_others}{_pre(after)}"
        return f"{_pre([*before, *after])}{of_others}{of_completed}"

    def _of_runs(self, runs: Sequence[Sequence[str]], heading: str) -> str:
        heading = f"{len(runs)} {heading}"
        if len(runs) <= _MOST_RUNS:
            return _pre([line for run in runs for line in run])
        if self._is_over:
            lines = _pre([line for run in runs for line in run])
            return f"<details><summary>{heading}</summary>{lines}</details>"
        last = [line for run in runs[-_MOST_RUNS:] for line in run]
        return _pre([f"{heading}, the last {_MOST_RUNS}:", *last])


def _pre(lines: Sequence[str]) -> str:
    content = "\n".join(map(marked, lines))
    return f'<pre style="{_STYLE}">{content}</pre>' if content else ""
