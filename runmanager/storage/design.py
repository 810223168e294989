"""What an experiment is for: its goal and its repeat axes, as grid.json holds them."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runmanager.console import printable
from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal, parse_goal


@dataclass(frozen=True)
class Design:
    """What decides in an experiment; a field is None if nobody has said it."""

    goal: Goal | None = None
    repeats: tuple[str, ...] | None = None  # the hyperparameters that only repeat a setting

    def updated(self, given: "Design") -> tuple["Design", list[str]]:
        """Return the design after a start that gives another, which wins, and a sentence for each change."""
        sentences = []
        changed = {name: value for name, value in vars(given).items() if value is not None}
        for name, value in changed.items():
            before = getattr(self, name)
            if before is not None and before != value:
                what = "goal is" if name == "goal" else "repeat axes are"
                sentences.append(f"the {what} {_text(value)} now, no longer {_text(before)}")
        return replace(self, **changed), sentences

    def decisive(self, starts: Iterable[Mapping[str, Any]]) -> Goal | None:
        """Return the goal, by default that of `keep=` in the last of the first lines of runs that has one."""
        goal = self.goal
        for start in () if goal else starts:
            keep = start.get("keep")
            if isinstance(keep, str) and keep != "last":
                with contextlib.suppress(InvalidArgumentError):
                    goal = parse_goal(keep)
        return goal

    def to_json(self) -> dict[str, Any]:
        """Return what grid.json holds of it: nothing of what nobody has said."""
        content: dict[str, Any] = {} if self.goal is None else {"goal": str(self.goal)}
        return content if self.repeats is None else {**content, "repeats": list(self.repeats)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> "Design":
        """Read it from the content of a grid.json; what is damaged is left out."""
        document = document or {}
        goal, repeats = None, document.get("repeats")
        if isinstance(document.get("goal"), str):
            with contextlib.suppress(InvalidArgumentError):
                goal = parse_goal(document["goal"])
        if isinstance(repeats, list) and all(isinstance(name, str) for name in repeats):
            return cls(goal, tuple(repeats))
        return cls(goal)


def _text(value: Goal | Sequence[str]) -> str:
    return printable(str(value) if isinstance(value, Goal) else ", ".join(value) or "none")
