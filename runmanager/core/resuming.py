"""The state of a run, which is saved with every epoch and restored on resume."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from runmanager.core import checkpoints, files, loaders, plain_state
from runmanager.core.checkpoints import Checkpoint
from runmanager.core.folders import RunFolder
from runmanager.core.goal import Goal, parse_goal
from runmanager.core.grid_context import GridContext
from runmanager.core.outcome import EpochRecord, Status
from runmanager.core.state import RunResult, read_run
from runmanager.core.trainer_state import continued
from runmanager.core.wording import did_you_mean
from runmanager.devices import ranks, torch_devices
from runmanager.errors import CheckpointError, InvalidArgumentError

_WITHOUT_PARAMETERS = (Optimizer, LRScheduler, torch.amp.GradScaler, torch.Generator)


class ResumeState:
    """The state of a run: saved with every epoch, restored when the run is resumed.

    Random states and the loader's generators are saved too.

    Args:
        parts: Name -> network, optimizer, scheduler, scaler, torch.Generator, or any object with state_dict()
            and load_state_dict(); or plain state, a dict or a list of JSON values. With None, no checkpoint is
            saved.
        keep: The epoch whose weights are saved in weights.pt: "last", "best:<metric>", "min:<metric>" or
            "max:<metric>". With None, no weights are saved.

    Raises:
        CheckpointError: A part has no state, plain state is not JSON, the network of an optimizer is missing,
            the parts are too large, or `keep` is not valid.
    """

    def __init__(
        self,
        folder: RunFolder,
        device: torch.device,
        parts: Mapping[str, Any] | None,
        loader: Any,
        keep: str | None,
    ) -> None:
        self._goal = goal_of(keep)
        self._folder = folder
        self._device = device
        self._loader = loader
        self.is_saved = parts is not None  # whether every epoch has a checkpoint
        self.was_left = False  # whether break ended the loop in the restored epoch
        self.parts = {**dict(loaders.generators(loader)), **(parts or {})}
        self._keep = keep
        self._best = -math.inf
        self._verified: frozenset[type] = frozenset()
        for name, part in self.parts.items():
            checkpoints.state_of(name, part)
        _check_network(parts or {})

    def restore(self, committed: Sequence[EpochRecord]) -> tuple[list[EpochRecord], list[str]]:
        """Restore every part to its state after the last saved epoch; rank 0 reads the state for all ranks."""
        problems: list[str] = []
        if not self.is_saved:
            return [], problems
        records, saved = ranks.broadcast(self._read(committed, problems) if ranks.is_main() else ([], None))
        if saved is not None:
            self._restore_parts(saved)
            self.was_left = saved.is_left
        for record in records:
            self._best = max(self._best, self.score(record))
        return records, problems

    def _read(
        self, committed: Sequence[EpochRecord], problems: list[str]
    ) -> tuple[list[EpochRecord], Checkpoint | None]:
        """Read the checkpoint and the records up to it."""
        folder = self._folder.path
        saved = checkpoints.load_checkpoint(folder, self._folder.id, problems)
        if saved is None:
            if problems:
                problems.append(f"{folder}: no checkpoint is left; the run starts from its first epoch")
            return [], None
        records = [record for record in committed if record.epoch < saved.record.epoch]
        if [record.epoch for record in records] != list(range(1, saved.record.epoch)):
            problems.append(
                f"{folder}: epochs before the checkpoint are missing; the run starts from its first epoch"
            )
            checkpoints.set_aside(folder, max(files.journals_by_attempt(folder), default=0))
            return [], None
        num_saved = len(saved.random.get("ranks", [None]))
        if num_saved != ranks.num_ranks():
            problems.append(
                f"{folder}: {num_saved} ranks began the run and {ranks.num_ranks()} resume it, "
                "so that the random states differ"
            )
        return [*records, saved.record], saved

    def save(self, record: EpochRecord, network: nn.Module | None, *, is_left: bool = False) -> None:
        """Save the state after an epoch with its record, before the record is committed to the journal."""
        if ranks.is_main():
            self._keep_weights(record, network)
        if not self.is_saved:
            return
        parts = self.parts.items()
        states = {name: checkpoints.state_of(name, part) for name, part in parts}
        random = torch_devices.random_states(self._device)
        # generators and plain state differ between ranks
        generators = {
            name: states[name]
            for name, part in parts
            if isinstance(part, torch.Generator) or plain_state.is_plain_state(part)
        }
        of_ranks = ranks.gather({"random": random, "generators": generators})
        if not ranks.is_main():
            return
        if len(of_ranks) > 1:
            random["ranks"] = of_ranks
        self._write(Checkpoint(self._folder.id, record, states, random, is_left))
        checkpoints.remove_checkpoint_files(self._folder.path, is_inside=True)

    def save_inside(self, record: EpochRecord, inside: Mapping[str, Any]) -> None:
        """Save the state after a batch, with the epoch's partial metrics."""
        states = {name: checkpoints.state_of(name, part) for name, part in self.parts.items()}
        random = torch_devices.random_states(self._device)
        self._write(Checkpoint(self._folder.id, record, states, random, inside=inside))

    def _write(self, checkpoint: Checkpoint) -> None:
        kinds = frozenset(_kinds([checkpoint.states, checkpoint.random, checkpoint.inside]))
        checkpoints.save_checkpoint(self._folder.path, checkpoint, verify=not kinds <= self._verified)
        self._verified |= kinds

    def learning_rate(self) -> float | None:
        """Return the learning rate of the first optimizer's first group, None without an optimizer."""
        optimizers = [part for part in self.parts.values() if isinstance(part, Optimizer)]
        with suppress(LookupError, TypeError, ValueError, RuntimeError):
            return float(optimizers[0].param_groups[0]["lr"])
        return None

    def forget(self) -> None:
        """Remove the checkpoints of a completed run."""
        if ranks.is_main():
            checkpoints.remove_checkpoint_files(self._folder.path)

    def _restore_parts(self, saved: Checkpoint) -> None:
        if saved.states.keys() != self.parts.keys():
            raise CheckpointError(
                f"the checkpoint has the states of {', '.join(saved.states)}, but the run has "
                f"{', '.join(self.parts)}: give epochs(checkpoint=...) the same names"
            )
        of_ranks, rank = saved.random.get("ranks", []), ranks.rank()
        of_this: Mapping[str, Any] | None = of_ranks[rank] if rank < len(of_ranks) else None
        states = {**saved.states, **(of_this["generators"] if of_this else {})}
        checkpoints.restore(self._folder.path, self.parts, states)
        if getattr(self._loader, "persistent_workers", False):
            # the loader draws the seed of its workers only once, before the random state is saved
            next(iter(self._loader), None)
        if of_this or rank == 0:
            torch_devices.restore_random(of_this["random"] if of_this else saved.random, self._device)

    def _keep_weights(self, record: EpochRecord, network: nn.Module | None) -> None:
        if self._keep is None:
            return
        if network is None:
            raise CheckpointError("keep= without a network: write manager.run(run, network, loader)")
        score = self.score(record)
        if self._keep == "last" or score > self._best:
            checkpoints.save_weights(self._folder.path, network)
        self._best = max(self._best, score)

    def score(self, record: EpochRecord) -> float:
        """Return the score of an epoch by the metric of `keep`: larger is better."""
        if self._goal is None:
            return -math.inf
        if self._goal.metric not in record.metrics:
            raise CheckpointError(
                f"keep={self._keep!r} but epoch {record.epoch} has no such metric; "
                f"{did_you_mean(self._goal.metric, record.metrics, 'it has')}"
            )
        return self._goal.score(record.metrics)


def earlier_of(
    folder: RunFolder, grid: GridContext, problems: list[str]
) -> tuple[Sequence[EpochRecord], bool, RunResult]:
    """Read the earlier state of a run: epochs, whether resuming makes the run mixed, and all of the state."""
    earlier = read_run(folder, problems)
    if grid.starts_over(earlier):
        checkpoints.set_aside(folder.path, earlier.attempts)
    return continued(earlier, grid), grid.is_changed(earlier), earlier


def goal_of(keep: str | None) -> Goal | None:
    """Return the goal that selects the epoch of the saved weights."""
    if keep in (None, "last"):
        return None
    with suppress(InvalidArgumentError):
        if str(keep).startswith(("best:", "min:", "max:")):
            return parse_goal(keep)
    raise CheckpointError(
        "keep must be 'last', 'best:<metric>' of a metric whose direction is known, as 'best:test_accuracy', "
        f"or 'min:<metric>' or 'max:<metric>' of any other, got {keep!r}"
    )


def attempt_to_keep(folder: RunFolder, grid: GridContext) -> int:
    """Return the attempt whose weights a new attempt must not overwrite when the run starts over."""
    if not (folder.path / files.WEIGHTS).exists():
        return 0
    earlier = read_run(folder)
    if earlier.status is not Status.COMPLETED and not grid.is_changed(earlier):
        return 0
    number = earlier.start.get("attempt")  # attempts after this attempt had no epoch
    return number if isinstance(number, int) else earlier.attempts


def _check_network(parts: Mapping[str, Any]) -> None:
    """Refuse parts with an optimizer, or a copy of its state, if no part saves the parameters that it trains.

    Raises:
        CheckpointError: No part saves the parameters.
    """
    others = [part for part in parts.values() if not isinstance(part, _WITHOUT_PARAMETERS)]
    has_optimizer = "param_groups" in parts or any(isinstance(part, Optimizer) for part in parts.values())
    if has_optimizer and all(map(plain_state.is_plain_state, others)):
        raise CheckpointError(
            "checkpoint= has an optimizer, but nothing that saves the parameters that it trains, so that they "
            "would start over on resume: add the network, "
            "as checkpoint={'network': network, 'optimizer': optimizer}"
        )


def _kinds(state: Any) -> Iterator[type]:
    """Yield the types in a state; each type is loaded once, to verify that it can be loaded safely."""
    yield type(state)
    if isinstance(state, (list, tuple, Mapping)):
        for item in [*state.keys(), *state.values()] if isinstance(state, Mapping) else state:
            yield from _kinds(item)
