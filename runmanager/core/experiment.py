"""Experiments: the folders of their runs in grid.json and run.json, and what an experiment is for.

A run is found by the identity of its hyperparameters, never by its number. When a grid grows, its earlier runs
keep their numbers and folders, and new runs get the next free numbers.
"""

import itertools
import json
import math
import os
import re
import sys
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec

from runmanager.core import files, lock
from runmanager.core.files import strict_json
from runmanager.core.goal import Goal, parse_goal
from runmanager.core.outcome import LARGEST, LEADING, EpochRecord
from runmanager.core.run import RunLike, id_of, params_of
from runmanager.core.values import column, decode, encode, key_of, text
from runmanager.core.wording import printable
from runmanager.errors import InvalidArgumentError, LifecycleError

SEEDS = ("seed", "fold", "split", "trial", "repeat")
"""Names of axes that count as repeat axes by default."""

WINDOWS_DEVICES = re.compile(r"(?i:(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?)")
"""The names of devices of Windows, with any suffix."""

_VERSION = 1
_EXPERIMENT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
_TAKEN = re.compile(f"{files.RUN_FOLDER.pattern}|{WINDOWS_DEVICES.pattern}")
_DEVICE = "device"
_LAST_TRIAL = "last_trial"  # the key in grid.json
_WORDS = {"goal": "goal is", "repeats": "repeat axes are", "decide": "rule of decide= is", "note": "note is",
          "x_axis": "x-axis of curves is"}  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path  # the folder, which exists after the run has begun
    number: int  # number of the run in the experiment, from 1; the column `run`
    id: str  # the identity of the hyperparameters
    params: Mapping[str, Any]
    # reason why the run cannot be executed on this machine, empty if the run can be executed
    unavailable: str = ""
    since: int = 0  # the last attempt that does not count, as code, data or versions have changed since
    is_changed: bool = False  # whether the run waits for changed=, as code, data or versions have changed since

    @property
    def last_attempt(self) -> int:
        """The number of the last attempt, 0 before the first one."""
        return max(files.journals_by_attempt(self.path), default=0)

    def row(self, record: EpochRecord) -> OrderedDict[str, Any]:
        """Return the row of an epoch in the table of the tutorial."""
        params = {column(name): value for name, value in self.params.items()}
        leading = {"run": self.number, "epoch": record.epoch, **dict.fromkeys(LEADING, math.nan)}
        return OrderedDict({**leading, **params, **record.metrics})

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of the run in grid.json and run.json."""
        params = {name: encode(value) for name, value in self.params.items()}
        crc = zlib.crc32(json.dumps([self.id, params], sort_keys=True).encode())
        entry: dict[str, Any] = {"number": self.number, "id": self.id, "folder": self.path.name}
        entry |= {"params": params, "crc": f"{crc:08x}"}
        if self.unavailable:
            entry["unavailable"] = self.unavailable
        if self.is_changed:
            entry["changed"] = True
        return entry


@dataclass(frozen=True)
class Rule:
    """The rule of `Decide`: the compared axis, and the conditions of a decision."""

    axis: str | None = None  # the axis whose values are compared; None to compare settings
    # differences up to the margin count as equal, in units of the metric
    margin: Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)] | None = None
    error: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05  # the probability that a verdict is wrong

    def as_json(self) -> dict[str, Any]:
        """Return the entry of grid.json, without fields that are None."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.as_json().items())


_OF_DESIGN = {
    "goal": str, "goals": list[Any], "repeats": tuple[str, ...], "decide": Rule, "note": str,
    "notes": dict[str, Any], "x_axis": str,
}  # fmt: skip
"""The keys of a design in grid.json -> the types of their values."""


@dataclass(frozen=True)
class Design:
    """The goal, repeat axes, rule and notes of an experiment; a field that was never set is None."""

    goal: Goal | None = None
    repeats: tuple[str, ...] | None = None  # the repeat axes
    decide: Rule | None = None  # the rule of `decide=`
    note: str | None = None  # a note on the whole experiment: lines of Markdown
    notes: Mapping[str, str] | None = None  # identity of a run -> note of the run
    x_axis: str | None = None  # the x-axis of curves, see `check_x_axis`
    goals: tuple[Goal, ...] | None = None  # all goals of a search with several goals; `goal` is the first goal

    def updated(self, design: "Design") -> tuple["Design", list[str]]:
        """Override this design with the fields set in `design`; return the result and a sentence per change."""
        sentences = []
        changed = {name: value for name, value in vars(design).items() if value is not None}
        for name, words in _WORDS.items():
            before, value = getattr(self, name), changed.get(name)
            if before is not None and value is not None and before != value:
                sentences.append(f"the {words} {_in_words(value)} now, no longer {_in_words(before)}")
        if design.notes is not None:
            changed["notes"] = {**(self.notes or {}), **design.notes}
        return replace(self, **changed), sentences

    def repeating(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return the repeat axes: those set by the user, or by default the given axes named in `SEEDS`."""
        return tuple(name for name in axes if name in SEEDS) if self.repeats is None else self.repeats

    @property
    def all_goals(self) -> tuple[Goal, ...]:
        """All goals: one goal, several goals of a search, or no goal."""
        return self.goals or (() if self.goal is None else (self.goal,))


def _in_words(value: Goal | Rule | str | Sequence[str]) -> str:
    if isinstance(value, (Goal, Rule)):
        return printable(str(value))
    return repr(value) if isinstance(value, str) else printable(", ".join(value)) or "none"


class KeptTrial(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored trial of a run, with the run's hyperparameters."""

    number: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
    attributes: Mapping[str, Any] = {}


msgspec.json.Decoder(tuple[Rule, KeptTrial])  # see `_Facts`: threads may meet them


def read_trials(run: RunFolder) -> list[KeptTrial]:
    """Read the trials of a run in run.json, without damaged entries."""
    entries = files.read_json(run.path / files.RUN).get("trials")
    trials: list[KeptTrial] = []
    for entry in entries if isinstance(entries, list) else []:
        with suppress(msgspec.ValidationError):
            trial = msgspec.convert(entry, KeptTrial)
            trials.append(KeptTrial(trial.number, without_text(trial.attributes)))
    return trials


def without_text(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a trial that are plain JSON without text: CMA-ES would unpickle text."""
    content: dict[str, Any] = {}
    for name, value in attributes.items():
        with suppress(TypeError, ValueError, RecursionError):
            strict_json(value)
            if not isinstance(value, str):
                content[name] = value
    return content


def write_run(run: RunFolder, trials: Sequence[KeptTrial] = ()) -> None:
    """Write run.json with further trials unless its content is unchanged; create the folder if needed."""
    before = files.read_json(run.path / files.RUN)
    content = {"v": _VERSION, **run.entry}
    if trials or "trials" in before:
        kept = {trial.number: trial for trial in (*trials, *read_trials(run))}
        content["trials"] = msgspec.to_builtins([kept[number] for number in sorted(kept)])
    if before != content:
        files.make_folder(run.path)
        files.write_file(run.path / files.RUN, strict_json(content))


@dataclass(eq=False)
class Experiment:
    """An experiment and its runs, as seen by the process that writes them."""

    path: Path
    # whether `path` is the root; the first run creates a folder, named with date and time
    is_unnamed: bool = field(default=False, kw_only=True)
    _runs: dict[str, RunFolder] | None = field(default=None, init=False)
    _read: object = field(default=None, init=False)  # the version of grid.json when the last run was created

    @property
    def runs(self) -> dict[str, RunFolder]:
        """The runs of the experiment by identity, read once."""
        if self._runs is None:
            self._runs = {run.id: run for run in read_runs(self.path)}
        return self._runs

    @property
    def design(self) -> Design:
        """The design of the experiment, without damaged fields."""
        document = files.read_json(self.path / files.GRID)
        values: dict[str, Any] = {}
        for name, kind in _OF_DESIGN.items():
            with suppress(KeyError, msgspec.ValidationError, InvalidArgumentError):
                value: Any = msgspec.convert(document[name], kind)
                if name == "goal":
                    value = parse_goal(value)
                elif name == "goals":
                    parsed: list[Goal] = []
                    for each in value:
                        with suppress(InvalidArgumentError):
                            parsed.append(parse_goal(each))
                    value = tuple(parsed)
                elif name == "notes":
                    value = {id_: note for id_, note in value.items() if isinstance(note, str)}
                values[name] = value
        if values.get("goals", ())[:1] != (values.get("goal"),):
            values.pop("goals", None)
        return Design(**values)

    def decide(self, design: Design) -> list[str]:
        """Update the design in grid.json; return a sentence for each change."""
        before = self.design
        after, sentences = before.updated(design)
        if after != before:
            self.write(after)
        return sentences

    def plan(
        self,
        grid: Sequence[RunLike],
        unavailable: Mapping[str, str],
        design: Design | None = None,
        *,
        is_written: bool = True,
    ) -> list[RunFolder]:
        """Assign numbers and folders to the runs of a grid, and write them to grid.json with the design."""
        design = self.design if design is None else design
        # unreadable folders keep their numbers too
        folders, others = run_folders(self.path)
        numbers = [*folders.values(), *others.values(), *(run.number for run in self.runs.values())]
        number = max(numbers, default=0) + 1
        digits = max(3, len(str(number + len(grid))))
        names = varying([*map(params_of, grid)])
        repeats = design.repeating(names)
        planned: list[RunFolder] = []
        for run in grid:
            id_, params = id_of(run), params_of(run)
            folder = self.runs.get(id_)
            if folder is None:
                named = {name: params[name] for name in names if name in params}
                folder = RunFolder(
                    self.path / files.run_folder(number, named, repeats, digits), number, id_, params
                )
                number += 1
            as_read = {name: decode(encode(value)) for name, value in params.items()}
            reason = unavailable.get(id_, "")
            planned.append(replace(folder, params=as_read, unavailable=reason))
        existing = {run.id: run for run in self.runs.values() if run.path.is_dir()}
        self._runs = existing | {run.id: run for run in planned}
        if is_written:
            self.write(design, planned)
        return planned

    def open(self, run: RunLike, repeat: int = 1) -> RunFolder:
        """Find or create the folder of a run; `repeat=2` stands for a second run with the same parameters."""
        check_beginning()
        if self.is_unnamed:
            self._create_dated()
        params = params_of(run)
        id_ = id_of(run) if repeat == 1 else f"{id_of(run)}-{repeat}"
        folder = self.runs.get(id_)
        if folder is None:
            # all hyperparameters name a run of a loop, as any of them may vary in later runs
            devices = {
                text(each.get(_DEVICE)) for each in (params, *(run.params for run in self.runs.values()))
            }
            names = [name for name in params if name != _DEVICE or len(devices) > 1]
            folder = self._create(id_, params, names)
        elif not (folder.path / files.RUN).exists():
            write_run(folder)
        return folder

    def add(
        self,
        run: RunLike,
        names: Sequence[str],
        unavailable: Mapping[str, str],
        trials: Sequence[KeptTrial] = (),
    ) -> RunFolder:
        """Create the folder of a run proposed by a search, unless the folder exists."""
        folder = self.runs.get(id_of(run)) or self._create(id_of(run), params_of(run), names, trials)
        folder = replace(folder, unavailable=unavailable.get(folder.id, ""))
        write_run(folder, trials)
        self.runs[folder.id] = folder
        return folder

    def _create(
        self, id_: str, params: Mapping[str, Any], names: Sequence[str], trials: Sequence[KeptTrial] = ()
    ) -> RunFolder:
        """Create the folder of a new run with the next free number, unless another process has created it."""
        files.make_folder(self.path)
        with files.explained(self.path), lock.claim(self.path):
            folders, others = run_folders(self.path)
            further = folders.keys() - {run.path.name for run in self.runs.values()}
            version = files.version_of(self.path / files.GRID)
            if further or version != self._read:  # other processes may have created or planned further ones
                self._read, self._runs = version, {run.id: run for run in read_runs(self.path)} | self.runs
            if id_ in self.runs:
                return self.runs[id_]
            for name in folders.keys() - {run.path.name for run in self.runs.values()}:
                with suppress(OSError):
                    if all(path.name.startswith(".") for path in (self.path / name).iterdir()):
                        del folders[name]  # a folder left empty by a kill keeps no number
            numbers = [*folders.values(), *others.values(), *(run.number for run in self.runs.values())]
            number = max(numbers, default=0) + 1
            repeats = self.design.repeating(params)
            name = files.run_folder(number, {name: params[name] for name in names}, repeats)
            as_read = {name: decode(encode(value)) for name, value in params.items()}
            folder = RunFolder(self.path / name, number, id_, as_read)
            folder.path.mkdir(exist_ok=True)
            files.sync(self.path)
            write_run(folder, trials)
            self.runs[id_] = folder
            return folder

    def _create_dated(self) -> None:
        """Create the folder of the experiment, with date and time as its name."""
        root, name = self.path, datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
        files.make_folder(root)
        for number in itertools.count(1):  # two processes in the same second get different folders
            path = root / (name if number == 1 else f"{name}_{number}")
            with files.explained(path), suppress(FileExistsError):
                path.mkdir()
                files.sync(root)
                self.path, self.is_unnamed = path, False
                return

    @property
    def last_trial(self) -> int | None:
        """An upper bound of the numbers of removed trials; None if no trial was removed."""
        last = files.read_json(self.path / files.GRID).get(_LAST_TRIAL)
        return last if type(last) is int and 0 <= last <= LARGEST else None

    def forget(self, ids: Collection[str]) -> None:
        """Remove runs from grid.json before their folders go; no trial gets a number of theirs again."""
        document = files.read_json(self.path / files.GRID)
        design, last = self.design, self.last_trial
        changed: dict[str, Any] = {}
        numbers = [trial.number for id_, run in self.runs.items() if id_ in ids for trial in read_trials(run)]
        if numbers:
            changed[_LAST_TRIAL] = max([*numbers, -1 if last is None else last])
        if isinstance(entries := document.get("runs"), list):
            changed["runs"] = [e for e in entries if not (isinstance(e, dict) and str(e.get("id")) in ids)]
        notes = {id_: note for id_, note in (design.notes or {}).items() if id_ not in ids}
        if document or changed:
            self.write(replace(design, notes=notes), **changed)
        self._runs = None

    def write(self, design: Design, planned: Sequence[RunFolder] | None = None, **changed: Any) -> None:
        """Write grid.json with a design, and the runs of a grid if given; other entries stay unless changed."""
        if planned is not None:
            self.runs.update((run.id, run) for run in planned)
            changed["runs"] = [run.entry for run in planned]
        before = files.read_json(self.path / files.GRID)
        if before:
            files.remove_leftovers(self.path)
        others = {name: value for name, value in before.items() if name not in _OF_DESIGN}
        fields = {
            "goal": None if design.goal is None else str(design.goal),
            "goals": list(map(str, design.goals)) if design.goals else None,
            "repeats": design.repeats,
            "decide": None if design.decide is None else design.decide.as_json(),
            "x_axis": design.x_axis,
            "note": design.note or None,
            "notes": {id_: note for id_, note in (design.notes or {}).items() if note} or None,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        content = {"v": _VERSION, **fields, "runs": [], **others, **changed}
        files.make_folder(self.path)
        files.write_file(self.path / files.GRID, strict_json(content))


def check_experiment(root: str | os.PathLike[str], name: str | None, *, is_unnamed: bool = False) -> None:
    """Refuse a root that cannot be a folder, and a name that cannot be the name of an experiment in it."""
    path = Path(root).absolute()
    problems: list[str] = []
    value: object = name  # the caller may pass a value of another type
    if not is_unnamed and not (
        isinstance(value, str) and _EXPERIMENT.fullmatch(value) and not _TAKEN.fullmatch(value)
    ):
        better = re.sub(r"[^A-Za-z0-9._-]+", "_", str(name)).strip("._-")[:59] or "experiment"
        better = f"exp_{better}" if _TAKEN.fullmatch(better) else better
        problems.append(
            "an experiment's name is a folder: up to 64 letters, digits, '.', '_' and '-', and not one of a "
            f"run, got {name!r}: write {better!r}"
        )
    with suppress(OSError, ValueError):  # if a folder cannot be read, a later write reports the reason
        file = next((parent for parent in (path, *path.parents) if parent.is_file()), None)
        if file:
            problems.append(f"root must be a folder, such as 'runs'; {str(files.for_people(file))!r} is a file")
        for other in os.listdir(path):  # noqa: PTH208 - no Path each
            if isinstance(value, str) and other != value and other.casefold() == value.casefold():
                both = f"experiments {name!r} and {other!r} in {files.for_people(path)}"
                problems.append(f"{both} differ in case alone: write one of the two")
    if problems:
        raise InvalidArgumentError(problems)


def check_beginning() -> None:
    """Raise an error if called in a process that executes a script again."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as warnings does
    while frame is not None:
        # where processes are not forked, as on Windows and macOS, each begins with the script under this name
        if frame.f_globals.get("__name__") == "__mp_main__" and frame.f_code.co_name == "<module>":
            raise LifecycleError(
                "a new process, as of a loader with num_workers, executes this script again: put what starts "
                'runs under `if __name__ == "__main__":`'
            )
        frame = frame.f_back


def varying(grid: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, in order, the names of hyperparameters that differ between runs or are missing in some runs."""
    names, first = dict.fromkeys(itertools.chain(*grid)), grid[0] if grid else {}
    return [
        name for name in names
        if name not in first
        or any(name not in params or key_of(params[name]) != key_of(first[name]) for params in grid[1:])
    ]  # fmt: skip


def read_runs(experiment: Path, damaged: list[str] | None = None) -> list[RunFolder]:
    """Read the runs of an experiment, sorted by number; append unreadable entries to `damaged`."""
    damaged = [] if damaged is None else damaged
    folders, others = run_folders(experiment)
    entries = files.read_json(experiment / files.GRID, damaged=damaged).get("runs")
    runs: dict[str, RunFolder] = {}
    for entry in entries if isinstance(entries, list) else []:
        if run := _read_entry(experiment, entry, others, damaged):
            runs[run.path.name] = run
    for name in [name for name in folders if name not in runs]:
        entry = files.read_json(experiment / name / files.RUN, damaged=damaged)
        if entry and (run := _read_entry(experiment, {**entry, "folder": name}, others, damaged)):
            runs[name] = run
        elif not entry and has_journals(experiment / name):
            damaged.append(f"{experiment / name} (no {files.RUN})")
    once: dict[str, RunFolder] = {}
    # grid.json may name a folder that does not exist beside a folder of the same run
    for run in sorted(runs.values(), key=lambda run: (run.path.name not in folders, run.number, run.path.name)):
        if once.setdefault(run.id, run) is not run and run.path.name in folders:
            damaged.append(f"{run.path} (a copy of {once[run.id].path.name})")
    return sorted(once.values(), key=lambda run: (run.number, run.path.name))


def _read_entry(experiment: Path, entry: Any, others: Collection[str], damaged: list[str]) -> RunFolder | None:
    """Read the entry of a run whose folder is not in `others`; append errors to `damaged`."""
    try:
        name = entry["folder"]
        number = files.run_number(name)
        if number is None or name in others:
            raise ValueError(f"not a run's folder: {name!r}")  # noqa: TRY301 - damaged, as below
        params = {str(key): decode(value) for key, value in entry["params"].items()}
        "".join(params).encode()  # a lone surrogate cannot name a column
        reason = str(entry.get("unavailable", ""))
        is_changed = bool(entry.get("changed"))
        run = RunFolder(experiment / name, number, str(entry["id"]), params, reason, is_changed=is_changed)
        if "crc" in entry and entry["crc"] != run.entry["crc"]:
            raise ValueError("its checksum differs")  # noqa: TRY301
        return run  # noqa: TRY300
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        name = entry.get("folder") if isinstance(entry, dict) else None
        file = experiment / (f"{name}/{files.RUN}" if isinstance(name, str) else files.GRID)
        damaged.append(f"{file}: a run that cannot be read ({error!s:.200})")
        return None


def run_folders(experiment: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the run folders in order, name -> number, and other entries with such a name: links and files."""
    folders: dict[str, int] = {}
    others: dict[str, int] = {}
    with suppress(OSError):
        for entry in sorted(os.scandir(experiment), key=lambda entry: entry.name):
            if match := files.RUN_FOLDER.fullmatch(entry.name):
                # a link may lead anywhere, so it does not count as a run
                is_folder = entry.is_dir(follow_symlinks=False)
                (folders if is_folder else others)[entry.name] = int(match["number"])
    return folders, others


def has_journals(folder: Path) -> bool:
    """Whether a run's folder has an attempt."""
    with suppress(OSError):
        return bool(files.journals_by_attempt(folder))
    return False
