"""The design of an experiment: its goal, repeat axes, rule of `decide=` and notes, stored in grid.json."""

import contextlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

from runmanager.core.goal import Goal, parse_goal
from runmanager.core.wording import printable
from runmanager.core.x_axis import check_x_axis
from runmanager.errors import InvalidArgumentError

LONGEST_NOTE = 1000
"""The maximum number of characters of a note."""

SEEDS = ("seed", "fold", "split", "trial", "repeat")
"""Names of axes that count as repeat axes by default."""

_WORDS = {"goal": "goal is", "repeats": "repeat axes are", "rule": "rule of decide= is", "note": "note is",
          "x_axis": "x-axis of curves is"}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """The rule of `Decide`: the compared axis, and the conditions of a decision."""

    axis: str | None = None  # the axis whose values are compared; None to compare settings
    margin: float | None = None  # differences up to the margin count as equal, in units of the metric
    error: float = 0.05  # the probability that a verdict is wrong

    def as_json(self) -> dict[str, Any]:
        """Return the entry of grid.json, without fields that are None."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_json(cls, content: Any) -> "Rule | None":
        """Read the entry of grid.json; None if the entry is damaged."""
        if not isinstance(content, Mapping):
            return None
        axis, margin, error = content.get("axis"), content.get("margin"), content.get("error", 0.05)
        rule = cls(axis, margin, error)
        return None if rule.problems() or not (axis is None or isinstance(axis, str)) else rule

    def problems(self) -> list[str]:
        """Return the errors of the rule's numbers."""
        problems = []
        if not (self.margin is None or _is_between(self.margin, math.inf)):
            problems.append(f"margin must be a number above 0, or None, got {self.margin!r}")
        if not _is_between(self.error, 1.0):
            problems.append(f"error must be a number between 0 and 1, got {self.error!r}")
        return problems

    def __str__(self) -> str:
        content = self.as_json()
        return ", ".join(f"{name}={content[name]!r}" for name in content)


@dataclass(frozen=True)
class Design:
    """The goal, repeat axes, rule and notes of an experiment; a field that was never set is None."""

    # the names in grid.json
    NAMES: ClassVar = ("goal", "goals", "repeats", "decide", "note", "notes", "x_axis")

    goal: Goal | None = None
    repeats: tuple[str, ...] | None = None  # the repeat axes
    rule: Rule | None = None  # the rule of `decide=`
    note: str | None = None  # a note on the whole experiment: lines of Markdown
    run_notes: Mapping[str, str] | None = None  # identity of a run -> note of the run
    x_axis: str | None = None  # the x-axis of curves, see `runmanager.core.x_axis`
    goals: tuple[Goal, ...] | None = None  # all goals of a search with several goals; `goal` is the first goal

    def updated(self, design: "Design") -> tuple["Design", list[str]]:
        """Override this design with the fields set in `design`; return the result and a sentence per change."""
        sentences = []
        changed = {name: value for name, value in vars(design).items() if value is not None}
        for name, words in _WORDS.items():
            before, value = getattr(self, name), changed.get(name)
            if before is not None and value is not None and before != value:
                sentences.append(f"the {words} {_text(value)} now, no longer {_text(before)}")
        if design.run_notes is not None:
            changed["run_notes"] = {**(self.run_notes or {}), **design.run_notes}
        return replace(self, **changed), sentences

    def repeating(self, varying: Iterable[str]) -> tuple[str, ...]:
        """Return the repeat axes: those set by the user, or by default the varying axes named in `SEEDS`."""
        return tuple(name for name in varying if name in SEEDS) if self.repeats is None else self.repeats

    def assumption(self, varying: Iterable[str]) -> str:
        """Return a sentence that the repeat axes were chosen by name; "" if no axis was chosen by name."""
        return assumption(self.repeating(varying)) if self.repeats is None else ""

    @property
    def all_goals(self) -> tuple[Goal, ...]:
        """All goals: one goal, several goals of a search, or no goal."""
        return self.goals or (() if self.goal is None else (self.goal,))

    def without(self, ids: Collection[str]) -> "Design":
        """Return the design without the notes of the runs with these identities."""
        notes = {id_: note for id_, note in (self.run_notes or {}).items() if id_ not in ids}
        return replace(self, run_notes=notes or None)

    def decisive(self, starts: Iterable[Mapping[str, Any]]) -> Goal | None:
        """Return the goal; by default, the last metric of `keep=` in the first lines of journals."""
        goal = self.goal
        for start in () if goal else starts:
            keep = start.get("keep")
            if isinstance(keep, str) and keep != "last":
                with contextlib.suppress(InvalidArgumentError):
                    goal = parse_goal(keep)
        return goal

    def as_json(self) -> dict[str, Any]:
        """Return the entries of grid.json for the fields that are set."""
        content: dict[str, Any] = {} if self.goal is None else {"goal": str(self.goal)}
        if self.goals:
            content["goals"] = list(map(str, self.goals))
        if self.repeats is not None:
            content["repeats"] = list(self.repeats)
        if self.rule is not None:
            content["decide"] = self.rule.as_json()
        content |= {} if self.x_axis is None else {"x_axis": self.x_axis}
        notes = {id_: note for id_, note in (self.run_notes or {}).items() if note}
        return content | ({"note": self.note} if self.note else {}) | ({"notes": notes} if notes else {})

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> "Design":
        """Read a design from the content of grid.json, without damaged fields."""
        document = document or {}
        goal, repeats, notes, x_axis = None, document.get("repeats"), document.get("notes"), None
        with contextlib.suppress(InvalidArgumentError):
            x_axis = check_x_axis(document.get("x_axis"))
        if isinstance(document.get("goal"), str):
            with contextlib.suppress(InvalidArgumentError):
                goal = parse_goal(document["goal"])
        if not (isinstance(repeats, list) and all(isinstance(name, str) for name in repeats)):
            repeats = None
        goals: list[Goal] = []
        with contextlib.suppress(InvalidArgumentError, TypeError):
            goals += map(parse_goal, document.get("goals") or ())
        pairs = notes.items() if isinstance(notes, dict) else ()
        by_run = {id_: note for id_, text in pairs if (note := _read_note(text))}
        return cls(
            goal,
            None if repeats is None else tuple(repeats),
            Rule.from_json(document.get("decide")),
            _read_note(document.get("note")) or None,
            by_run or None,
            x_axis,
            tuple(goals) if goals[:1] == [goal] else None,
        )


def assumption(axes: Sequence[str]) -> str:
    """Return a sentence that the given axes were chosen as repeat axes by name; "" without axes.

    >>> assumption(["seed"])
    'By its name, seed only repeats a setting; repeats=() says that no axis does'
    """
    if not axes:
        return ""
    named = (
        f"By its name, {axes[0]} only repeats"
        if len(axes) == 1
        else f"By their names, {' and '.join(axes)} only repeat"
    )
    return f"{named} a setting; repeats=() says that no axis does"


def check_note(note: object) -> str:
    r"""Return a note without the space around it and at the ends of its lines.

    >>> check_note("smaller steps? \n- for Adam\n")
    'smaller steps?\n- for Adam'
    """
    if not isinstance(note, str):
        raise InvalidArgumentError([f"a note must be text, got {note!r:.60}"])
    if len(lines := _lines(note)) > LONGEST_NOTE:
        rule = f"a note has at most {LONGEST_NOTE} characters, this one has {len(lines):,}"
        raise InvalidArgumentError([f"{rule}: put it into a file, and name that"])
    return lines


def first_line_of_note(note: str | None) -> str:
    """Return the first line of a note, for screens with one line for it; "" without a note."""
    return (note or "").partition("\n")[0]


def _lines(note: str) -> str:
    return "\n".join(line.expandtabs(4).rstrip() for line in note.strip().splitlines())


def _read_note(note: Any) -> str:
    return _lines(note[: 2 * LONGEST_NOTE])[:LONGEST_NOTE] if isinstance(note, str) else ""


def _is_between(value: Any, most: float) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < most


def _text(value: Goal | Rule | str | Sequence[str]) -> str:
    if isinstance(value, (Goal, Rule)):
        return printable(str(value))
    return repr(value) if isinstance(value, str) else printable(", ".join(value)) or "none"
