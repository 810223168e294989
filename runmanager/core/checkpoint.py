"""The state of a run's loop: saved before an epoch's record is committed, and restored on resume.

Files are those of torch.save, whose checksums are verified first, as torch.load does not detect damage. They
are loaded with ``weights_only=True``, so no code in them is ever executed.

A run keeps two generations of checkpoints. A checkpoint inside an epoch has the partial metrics of the epoch in
place of its record, and only one generation.
"""

import io
import math
import pickle
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from runmanager.core import files, loaders, plain_state
from runmanager.core.experiment import RunFolder
from runmanager.core.goal import Goal, parse_goal
from runmanager.core.grid_context import GridContext
from runmanager.core.outcome import EpochRecord, Status
from runmanager.core.state import read_run
from runmanager.core.wording import counted, did_you_mean
from runmanager.devices import ranks, torch_devices
from runmanager.errors import CheckpointError, InvalidArgumentError, first_line, warn

VERSION = 2
_GENERATIONS = (files.PREVIOUS_CHECKPOINT, files.CHECKPOINT)
_WITHOUT_PARAMETERS = (Optimizer, LRScheduler, torch.amp.GradScaler, torch.Generator)

# The content of a checkpoint: the `id` of the run, the `states` of its parts by name, and for each of its
# `ranks` what differs between them: the `random` states, and the `states` of generators and plain state.
# After an epoch, also its `record`, which repairs a journal without it, and `is_left`, whether break ended
# the loop in this epoch. Inside an epoch, `inside` has its partial metrics and the position of the loader.
Saved = dict[str, Any]

Interval = int | float | None
"""The number of batches (an int), or the seconds, between two commits inside an epoch; None for no commits."""

Keep = str | tuple[str, nn.Module]
"""The epoch whose weights are saved, and the module if it is not the run's network."""


class ResumeState:
    """The state of a run, also random: saved with every epoch, restored on resume. See `RunManager.epochs`."""

    def __init__(
        self,
        folder: RunFolder,
        device: torch.device,
        parts: Mapping[str, Any] | None,
        loader: Any,
        keep: Keep | None,
        watch: Callable[[Any, Iterable[Any]], Any] | None = None,
    ) -> None:
        self.is_saved = parts is not None  # whether every epoch has a checkpoint
        self.was_left = False  # whether break ended the loop in the restored epoch
        # the reason why a resumed run may differ from an uninterrupted run, "" if there is none
        self.inexact = ""
        self._watch = watch
        self.unsaved: Any = None  # until the first epoch has ended
        parts = parts or {}
        self.parts = {**dict(loaders.generators(loader)), **parts}
        self._folder, self._device, self._loader = folder, device, loader
        self._goal = goal_of(keep)
        self.keep: str | None
        self._kept: nn.Module | None
        self.keep, self._kept = _parts_of(keep)
        if self._kept is not None:  # else a copy that the loop updates would start over on resume
            self.parts["keep="] = self._kept
        self._best = -math.inf
        for name, part in self.parts.items():
            state_of(name, part)
        others = [part for part in parts.values() if not isinstance(part, _WITHOUT_PARAMETERS)]
        # param_groups: given as optimizer.state_dict()
        has_optimizer = "param_groups" in parts or any(isinstance(part, Optimizer) for part in parts.values())
        if has_optimizer and all(map(plain_state.is_plain_state, others)):
            raise CheckpointError(
                "checkpoint= has an optimizer, but nothing that saves the parameters that it trains: "
                "add the network, as checkpoint={'network': network, 'optimizer': optimizer}"
            )

    def restore(self, committed: Sequence[EpochRecord], problems: list[str]) -> list[EpochRecord]:
        """Restore every part to its state after the last saved epoch; rank 0 reads the state for all ranks."""
        if not self.is_saved:
            return []
        records, saved = ranks.from_main(lambda: self._read(committed, problems))
        if saved is not None:
            self.check_names(saved)
            if getattr(self._loader, "persistent_workers", False):
                # the loader draws the seed of its workers only once, before all restored states
                next(iter(self._loader), None)
            self.load(saved)
            self.was_left = saved["is_left"]
            self.inexact = saved.get("inexact", "")  # older checkpoints have none
        elif self._watch:
            with suppress(Exception):  # of the objects of users
                self.unsaved = self._watch(self._loader, self.parts.values())
        self._best = max([self._best, *map(self.score, records)])
        return records

    def _read(
        self, committed: Sequence[EpochRecord], problems: list[str]
    ) -> tuple[list[EpochRecord], Saved | None]:
        """Read the checkpoint and the records up to it."""
        folder = self._folder.path
        saved = load_checkpoint(folder, self._folder.id, problems)
        if saved is None:
            if problems:
                problems.append(f"{folder}: no checkpoint is left; the run starts from its first epoch")
            return [], None
        last = msgspec.convert(saved["record"], EpochRecord)
        records = [record for record in committed if record.epoch < last.epoch]
        if len(records) != last.epoch - 1:
            problems.append(
                f"{folder}: epochs before the checkpoint are missing; the run starts from its first epoch"
            )
            set_aside(folder, self._folder.last_attempt, *_GENERATIONS)
            return [], None
        num_saved = len(saved["ranks"])
        if num_saved != ranks.num_ranks():
            problems.append(
                f"{folder}: {num_saved} ranks began the run and {ranks.num_ranks()} resume it, "
                "so that the random states differ"
            )
        return [*records, last], saved

    def check_names(self, saved: Saved) -> None:
        """Refuse a checkpoint that has the states of other parts."""
        if saved["states"].keys() != self.parts.keys():
            names = f"{', '.join(saved['states'])}, but epochs(checkpoint=...) has {', '.join(self.parts)}"
            raise _unfit(saved, f"holds {names}: give it the same names")

    def load(self, saved: Saved) -> None:
        """Restore the states of the parts, and the random states of this rank if it was there."""
        rank = ranks.rank()
        own = saved["ranks"][rank] if rank < len(saved["ranks"]) else None
        states = saved["states"] | (own["states"] if own else {})
        for name, part in self.parts.items():
            state = states[name]
            try:
                if isinstance(part, torch.Generator):
                    part.set_state(state)
                elif plain_state.is_plain_state(part):
                    plain_state.fill(part, state)
                else:
                    part.load_state_dict(state)
            except Exception as error:
                groups = state.get("param_groups") if isinstance(state, dict) else None
                held = f"{counted(len(groups), 'group')} of parameters" if groups else "a state"
                why = " ".join(str(error).split())
                step = (
                    f"if the loop changes {name} in an epoch, as in epoch 2, change it before epochs() too, as"
                )
                rule = f"holds {held} of {name!r} that does not fit ({why}): {step}"
                raise _unfit(saved, f"{rule} `if manager.resume_epoch >= 2: ...`") from error
        if own:
            torch_devices.restore_random(own["random"], self._device)

    def save(self, record: EpochRecord, network: nn.Module | None, *, is_left: bool = False) -> None:
        """Save the state after an epoch with its record, before the record is committed to the journal."""
        if self.keep is not None and ranks.is_main():
            self._keep_weights(record, network if self._kept is None else self._kept)
        if self.is_saved:
            self._write(files.CHECKPOINT, record=msgspec.to_builtins(record), is_left=is_left)
            self.unsaved = None

    def save_inside(self, inside: Mapping[str, Any]) -> None:
        """Save the state after a batch, with the epoch's partial metrics."""
        self._write(files.INSIDE_CHECKPOINT, inside=inside)

    def _write(self, file: str, **facts: Any) -> None:
        states = {name: state_of(name, part) for name, part in self.parts.items()}
        own = {
            name: states[name]
            for name, part in self.parts.items()
            if isinstance(part, torch.Generator) or plain_state.is_plain_state(part)
        }
        of_ranks = ranks.gather({"random": torch_devices.random_states(self._device), "states": own})
        reason = self.unsaved.reason(is_inside=file == files.INSIDE_CHECKPOINT) if self.unsaved else ""
        if ranks.is_main():
            if reason and reason not in self.inexact:
                warn(reason)
                # resumed inside the first epoch, it has a reason already
                self.inexact = "; ".join(filter(None, [self.inexact, reason]))
            folder, facts["inexact"] = self._folder.path, self.inexact
            content = [
                _dumped({"v": VERSION, "id": self._folder.id, "states": states, "ranks": of_ranks, **facts})
            ]
            previous = folder / files.PREVIOUS_CHECKPOINT if file == files.CHECKPOINT else None
            files.write_file(folder / file, content, previous)
            if previous:
                remove_files(folder, files.INSIDE_CHECKPOINT)

    def _keep_weights(self, record: EpochRecord, network: nn.Module | None) -> None:
        if network is None:
            raise CheckpointError("keep= without a network: write manager.run(run, network, loader)")
        score = self.score(record)
        if self.keep == "last" or score > self._best:
            # a plain state_dict, for torch.load(path, weights_only=True)
            files.write_file(self._folder.path / files.WEIGHTS, [_dumped(_inner(network).state_dict())])
        self._best = max(self._best, score)

    def score(self, record: EpochRecord) -> float:
        """Return the score of an epoch by the metric of `keep`: larger is better."""
        return -math.inf if self._goal is None else score_of(record, self._goal, "keep=")

    def learning_rate(self) -> float | None:
        """Return the learning rate of the first optimizer's first group, None without an optimizer."""
        with suppress(LookupError, TypeError, ValueError, RuntimeError):
            optimizers = [part for part in self.parts.values() if isinstance(part, Optimizer)]
            return float(optimizers[0].param_groups[0]["lr"])
        return None

    def forget(self) -> None:
        """Remove the checkpoints of a completed run."""
        if ranks.is_main():
            remove_files(self._folder.path, files.INSIDE_CHECKPOINT, *_GENERATIONS)


@dataclass
class TrainerState:
    """The checkpoints of an external trainer, with the interface of `ResumeState`."""

    last: Callable[[int], int] = int  # committed epochs -> epoch after which it resumes, 0 for none
    save_epoch: Callable[[int], None] = lambda _: None  # writes the checkpoint of an epoch, before its commit
    forget: Callable[[], None] = lambda: None  # called when the run has completed
    learning_rate: Callable[[], float | None] = lambda: None  # never raises an exception
    is_saved: bool = True  # whether the run may be stopped and resumed
    keep: str | None = None  # trainers keep their own weights
    was_left: bool = False  # trainers handle an early end themselves
    inexact: str = ""  # why a resumed run may differ, "" if it does not

    def restore(self, committed: Sequence[EpochRecord], problems: list[str]) -> list[EpochRecord]:
        """Return the records of the epochs not to execute again."""
        del problems
        return ranks.from_main(lambda: list(committed[: self.last(len(committed))]))

    def score(self, record: EpochRecord) -> None:
        """Do nothing, as a trainer keeps its own weights."""

    def save(self, record: EpochRecord, network: nn.Module | None, *, is_left: bool = False) -> None:
        """Let the trainer save its state before the record is committed to the journal."""
        del network, is_left
        self.save_epoch(record.epoch)


def _unfit(saved: Saved, what: str) -> CheckpointError:
    """Return the error of a checkpoint that does not fit; its run stays interrupted."""
    position = f"after epoch {saved['record']['epoch']}" if "record" in saved else "inside an epoch"
    error = CheckpointError(f"the checkpoint {position} {what}")
    error.is_unfit = True
    return error


def supersede(folder: Path, attempt: int) -> None:
    """Set aside the checkpoints of an attempt, as the run starts over."""
    set_aside(folder, attempt, *_GENERATIONS)
    remove_files(folder, files.INSIDE_CHECKPOINT)


def goal_of(keep: Keep | None) -> Goal | None:
    """Return the goal that selects the epoch of the saved weights."""
    rule, _ = _parts_of(keep)
    if rule in (None, "last"):
        return None
    with suppress(InvalidArgumentError):
        if ":" in str(rule):
            return parse_goal(rule)
    raise CheckpointError(
        "keep must be 'last', 'best:<metric>' of a metric whose direction is known, as 'best:test_accuracy', "
        "or 'min:<metric>' or 'max:<metric>' of any other, or a pair of one of these and the module to save, "
        f"got {rule!r}"
    )


def score_of(record: EpochRecord, goal: Goal, option: str) -> float:
    """Return the score of an epoch by the metric that an option watches: larger is better."""
    if goal.metric not in record.metrics:
        raise CheckpointError(
            f"{option} watches {goal.metric!r}, which epoch {record.epoch} does not have; "
            f"{did_you_mean(goal.metric, record.metrics, 'it has')}"
        )
    return goal.score(record.metrics)


def _parts_of(keep: Any) -> tuple[Any, nn.Module | None]:
    """Return the rule, and the module to save if it is not the run's network."""
    return keep if isinstance(keep, tuple) and len(keep) == 2 else (keep, None)  # noqa: PLR2004 - a pair


def attempt_to_keep(folder: RunFolder, grid: GridContext) -> int:
    """Return the attempt whose weights must not be overwritten when the run starts over, 0 for none."""
    if not (folder.path / files.WEIGHTS).exists():
        return 0
    earlier = read_run(folder)
    if earlier.status is not Status.COMPLETED and not grid.is_changed(earlier):
        return 0
    number: int = earlier.start.get("attempt", earlier.attempts)  # attempts after this attempt had no epoch
    # one of them may have saved weights, and ended before its record
    return 0 if (folder.path / f"attempt-{number}.{files.WEIGHTS}").exists() else number


def state_of(name: str, part: Any) -> Any:
    """Return the state of one part of a checkpoint."""
    if isinstance(part, torch.Generator):
        return part.get_state()
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        return part.state_dict()
    if plain_state.is_plain_state(part):
        return plain_state.copied(f"checkpoint[{name!r}]", part)
    advice = f": {plain_state.OF_TENSORS}" if isinstance(part, torch.Tensor) else ""
    raise CheckpointError(
        f"checkpoint[{name!r}] must have state_dict() and load_state_dict(), or be a torch.Generator, "
        f"or a dict or a list of JSON values, got {type(part).__name__}{advice}"
    )


def load_checkpoint(
    folder: Path, id_: str, problems: list[str], names: Sequence[str] = _GENERATIONS
) -> Saved | None:
    """Read the newest intact checkpoint of a run, whose name is the last of `names`."""
    for path in (folder / name for name in reversed(names)):
        with files.explained(path):  # a file that cannot be read is not damaged
            if not path.exists():
                continue
            content = files.read_file(path)
        try:
            saved: Saved = _loaded(content)
            if (saved["v"], saved["id"]) == (VERSION, id_):
                return saved
            cause = "it belongs to another run or version"
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged or hostile file raises anything
            cause = _cause(error)
        problems.append(f"{path} is not used ({cause})")
        with suppress(OSError):
            # otherwise the damaged file would become the second generation
            path.replace(path.with_suffix(".damaged"))
    return None


def load_weights(folder: Path, network: nn.Module, attempt: int = 0) -> None:
    """Load the saved weights of a run, or of one of its attempts, into a network; no code is executed."""
    path, where = folder / f"attempt-{attempt}.{files.WEIGHTS}", files.for_people(folder)
    if not path.exists():
        path = folder / files.WEIGHTS
    try:
        state = _loaded(files.read_file(path))
    except FileNotFoundError:
        raise CheckpointError(
            f"{where} has kept no weights: write manager.epochs(n, keep='best:validation_loss')"
        ) from None
    except Exception as error:
        raise CheckpointError(f"{where / path.name} cannot be loaded: {_cause(error)}") from error
    try:
        _inner(network).load_state_dict(state)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise CheckpointError(
            f"{where / path.name} does not fit the network ({why:.500}): "
            f"build it with load_run({str(where)!r}).params"
        ) from error


def _inner(network: nn.Module) -> nn.Module:
    """Return the network within torch.compile, DataParallel, DistributedDataParallel and AveragedModel."""
    if isinstance(network, (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)):
        return _inner(network.module)
    inner = getattr(network, "_orig_mod", None)
    return network if inner is None else _inner(inner)


def remove_files(folder: Path, *names: str) -> None:
    """Remove checkpoints of a run."""
    for name in names:
        with files.explained(folder / name):
            (folder / name).unlink(missing_ok=True)


def set_aside(folder: Path, attempt: int, *names: str) -> None:
    """Rename a file of a superseded attempt; of several generations, the last name stays."""
    for name in names:
        with files.explained(folder / name), suppress(FileNotFoundError):
            (folder / name).replace(folder / f"attempt-{attempt}.{names[-1]}")


def _dumped(content: Any) -> memoryview:
    """Return the bytes of torch.save, after a check that they are loaded without executing code."""
    file = io.BytesIO()
    try:
        torch.save(content, file)
        file.seek(0)
        cause = ", ".join(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except Exception as error:
        raise CheckpointError(
            "a state cannot be saved: keep tensors, numbers, text, lists and dicts in state_dict() "
            f"({_cause(error)})"
        ) from error
    if "Uninitialized" in cause:
        raise CheckpointError(
            "a lazy layer that no batch has used has no weights to save: leave it out of the network"
        )
    if cause:
        raise CheckpointError(
            "a state holds objects that could not be loaded without executing code: keep tensors, numbers, "
            f"text, lists and dicts in state_dict() ({cause})"
        )
    return file.getbuffer()


def _loaded(content: bytes) -> Any:
    """Load the bytes of torch.save, without executing code in them."""
    file = io.BytesIO(content)
    try:
        with zipfile.ZipFile(file) as archive:
            members, damaged = archive.infolist(), archive.testzip()
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if damaged:
        raise ValueError("its checksum differs: it is damaged")
    # compressed members may unpack to any size; of a folder, torch reads no content
    if any(
        m.compress_type != zipfile.ZIP_STORED or m.file_size != m.compress_size or m.external_attr
        for m in members
    ):
        raise ValueError("torch.save does not write such a file: it is damaged")
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def _cause(error: Exception) -> str:
    """Return the cause in one printable line, without torch's advice to disable weights_only."""
    cause = error.__context__ if isinstance(error, pickle.UnpicklingError) else error
    line = first_line(cause or error).partition(". Please")[0] or type(error).__name__
    return line if line.isprintable() else repr(line)
