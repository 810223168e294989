"""The TensorBoard listener of a run: writes scalars, hparams, texts, images and graph to an event file."""

import contextlib
import functools
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from runmanager.core import files
from runmanager.core.design import Design
from runmanager.core.folders import Experiment, RunFolder
from runmanager.core.goal import Goal, default_goal
from runmanager.core.listeners import RunListener
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.steps import Block
from runmanager.core.values import plain, text
from runmanager.core.x_axis import EPOCH, x_of, x_value
from runmanager.errors import RunsWarning
from runmanager.tensorboard import confusion, event_file, histograms, hparams, images
from runmanager.tensorboard.confusion import Confusion
from runmanager.tensorboard.tags import (
    BEST,
    BEST_AFTER,
    BEST_EPOCH,
    EPOCH_SECONDS,
    LAST,
    image_tag,
    step_tag,
    tag,
)
from runmanager.user_frames import user_level

CHARTS = {
    "side by side": {  # category with two charts in a row
        "goal, best so far": ["^Goal/best$"],
        "goal": ["^Goal/last$"],
        "loss of the training": ["^loss/train$"],
        "loss of the evaluation": ["^loss/(?!train$)"],
        "accuracy of the training": ["^accuracy/train$"],
        "accuracy of the evaluation": ["^acc(uracy)?/(?!train$)"],
    },
    "overview": {
        "loss": ["^loss/"],
        "accuracy": ["^acc(uracy)?/"],
        "epoch duration (s)": ["^time/epoch_s$"],
        "parts of an epoch (s)": ["^time/phase_"],
    },
}
"""The custom-scalars page: category -> chart -> tags.

"side by side" suits many runs, "overview" suits few runs.
"""

_LONGEST = 10_000  # the maximum number of characters of an error, and of the end of an error.log


SAMPLES = "visuals/samples"
"""The tag of the images of the first batch."""

P = ParamSpec("P")
Method = Callable[Concatenate["RunLog", P], None]


def _guarded(method: Method[P]) -> Method[P]:
    """Turn errors in a logging call into one warning per run."""

    @functools.wraps(method)
    def guarded(run_log: "RunLog", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(run_log, *args, **kwargs)
        except OSError as error:
            run_log.give_up(error)
        except Exception as error:  # noqa: BLE001 - no logging call may end a run
            run_log.warn(f"{method.__name__}: {type(error).__name__}: {error}")

    return guarded


class RunLog(RunListener):
    """Writes the event file of one attempt. No method raises.

    The text ``run/config`` shows `details` beside the hyperparameters. `histogram_every` is in epochs; 0 means
    never. `kinds` has the types of the grid's hyperparameters, None if unknown. `goal` and `x_axis` are the
    experiment's.
    """

    def __init__(
        self,
        experiment: str,
        folder: RunFolder,
        attempt: int,
        details: Mapping[str, Any],
        histogram_every: int = 1,
        kinds: Mapping[str, str] | None = None,
        goal: Goal | None = None,
        x_axis: str | None = None,
    ) -> None:
        self._x_axis = None if x_axis == EPOCH else x_axis
        self._name = f"{experiment}/{folder.path.name}"
        self._folder = folder
        self._every = histogram_every
        self._goal = goal
        self._goal_scalars = GoalScalars()
        self._last: tuple[int, nn.Module | None] = (0, None)
        self._drawn = 0
        self._confusions: dict[str, tuple[Confusion, Any]] = {}
        self._first_input = images.FirstInput()
        self._described = False
        self._file: event_file.EventFile | None = None
        self._warned = False
        self._writer: SummaryWriter | None = None
        self._attempt = attempt
        self._kinds = kinds
        self._details = details
        self._waiting: list[Event] | None = []  # events to write when the file is open
        self._first: list[Event] = []
        self._lr: float | None = None  # learning rate at the start of the epoch
        self._images: list[Summary.Value] = []  # images of the epoch

    @_guarded
    def attempt_began(
        self,
        records: Sequence[EpochRecord] = (),
        *,
        keep: str | None = None,
        last_step: int = 0,
    ) -> None:
        """Create the event file."""
        folder = self._folder.path
        goal = Design(self._goal).decisive([{"keep": keep}])
        self._goal_scalars = GoalScalars(goal)
        epochs = [event_file.event(self._x(record), self._scalars(record, None)) for record in records]
        is_resumed = bool(records or last_step)
        written: list[int] = []  # the steps of epochs in the earlier files
        earlier = event_file.event_files(folder)
        for path in earlier:
            if is_resumed:
                event_file.reopen_session(path)
                written += [event.step for event in event_file.read_events(path) if _is_epoch(event)]
            else:
                path.unlink(missing_ok=True)
        steps = [event.step for event in epochs]
        if written[: len(steps)] != steps[: len(written)]:  # an epoch is lost: all are written again
            written, first_step = [], 0
        elif len(written) > len(steps):  # the last epochs are executed again
            first_step = 1 + max(steps, default=0)
        else:
            first_step = 1 + max([last_step, *steps]) if is_resumed else 0
        self._described = bool(written)
        self._file = event_file.EventFile(folder, self._attempt, first_step)
        form = hparams.read_format(folder.parent, self._kinds)
        values = [event_file.session_start(form.hparams(self._folder.params), form.trial_id(self._folder))]
        if not (first_step and earlier):
            values.append(event_file.layout(CHARTS))
            repeats = Experiment(folder.parent).design.assumption(form.repeats) or ", ".join(form.repeats)
            facts = {"goal": "" if goal is None else str(goal), "repeats": repeats}
            details = {**{name: fact for name, fact in facts.items() if fact}, **self._details}
            values.append(event_file.text_value("run/config", _settings_table(self._folder.params, details)))
        waiting, self._waiting = self._waiting or [], None
        opening = [event_file.event(first_step, [value]) for value in values]
        first = [] if is_resumed else self._first  # the file of the first attempt has the first events
        self._write(*opening, *first, *epochs[len(written) :], *waiting)

    @property
    def writer(self) -> SummaryWriter:
        """A SummaryWriter that writes into this file, created on first use."""
        if self._writer is None:
            from runmanager.tensorboard.summary_writer import RunWriter

            self._writer = RunWriter(self._folder.path, self._add)
        return self._writer

    @_guarded
    def run_began(self, run: Any, network: nn.Module | None, loader: Any) -> None:
        """Capture the network's first input, to show it after the first epoch."""
        if network is not None:
            self._first_input.watch(network, self._see)

    def epoch_began(self, *, is_saved: bool, learning_rate: float | None) -> None:
        """Store the learning rate, to show it after the epoch."""
        self._lr = learning_rate

    @_guarded
    def evaluated(self, values: Mapping[str, float]) -> None:
        """Write metrics from before the first epoch as step 0, if the attempt begins with the first epoch."""
        event = event_file.event(0, [event_file.scalar(tag(name), v) for name, v in values.items()])
        if self._waiting is None:
            self._write(event)
        else:
            self._first.append(event)

    def classes_counted(self, name: str, counts: Confusion, loader: Any) -> None:
        """Store the counts of an evaluation; at the end of the run, the last counts per name are drawn."""
        self._confusions[name] = counts, loader

    @_guarded
    def epoch_ended(self, record: EpochRecord, network: nn.Module | None) -> None:
        """Write an epoch's scalars and histograms; the first time also sample images and the graph."""
        step = self._x(record)
        if x_value(record, self._x_axis) is None:
            self.warn(
                f"no x_axis={self._x_axis!r} in epoch {record.epoch}, so its number is the x value: track it"
            )
        self._last = step, network
        drawn, self._images = self._images, []
        for values in filter(None, (self._scalars(record, network, self._lr), drawn)):
            self._write(event_file.event(step, values))
        if network is not None and not self._described:
            self._described = True
            self._first_input.forget()
            self._samples()
            self._graph(network)
        if network is not None and self._every and (record.epoch - 1) % self._every == 0:
            self._histograms(step, network)

    @_guarded
    def steps_logged(self, block: Block) -> None:
        """Write the values of single steps."""
        self._write(*_step_events(block))

    @_guarded
    def image_logged(self, name: str, image: Any) -> None:
        """Draw an image, to write it at the end of the epoch."""
        self._images.append(event_file.image(image_tag(name), *images.picture(image)))

    @_guarded
    def run_ended(self, outcome: Outcome) -> None:
        """Write the last images and the outcome, and close the file."""
        self._first_input.forget()
        try:
            if outcome.status is Status.COMPLETED:
                step, network = self._last
                if network is not None and self._every and step != self._drawn:
                    self._histograms(step, network)
                self._draw_confusions(step or outcome.epochs)
            if not outcome.status.can_go_on:  # without an end of the session, TensorBoard shows "unknown"
                self._write(*_ending(outcome, self._folder.path))
        finally:
            self._last, self._confusions = (0, None), {}
            self._close()

    def warn(self, problem: str) -> None:
        """Warn once per run about content that could not be written."""
        if not self._warned:
            self._warned = True
            message = f"{self._name}: TensorBoard lacks some content ({problem}); training goes on"
            warnings.warn(message, RunsWarning, stacklevel=user_level())

    def give_up(self, error: OSError) -> None:
        """Stop writing this event file, as its folder is not writable."""
        with contextlib.suppress(OSError):
            self._close()
        self.warn(f"logging stopped: {error.strerror or error}")

    @_guarded
    def _see(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._first_input.take(inputs)

    @_guarded
    def _samples(self) -> None:
        samples = self._first_input.images
        if samples is not None:
            self._write(event_file.event(0, [event_file.image(SAMPLES, *images.sheet(samples))]))

    @_guarded
    def _graph(self, network: nn.Module) -> None:
        from runmanager.tensorboard.graph import graph

        try:
            content = graph(network)
        except Exception:  # noqa: BLE001 - fx cannot trace every network: then there is no graph
            return
        self._write(Event(wall_time=time.time(), graph_def=content))

    @_guarded
    def _histograms(self, step: int, network: nn.Module) -> None:
        self._drawn = step
        stats = histograms.statistics(histograms.tensors(network))
        values = [event_file.histogram(name, numbers) for name, numbers in stats.items()]
        if values:
            self._write(event_file.event(step, values))

    @_guarded
    def _draw_confusions(self, step: int) -> None:
        for name, (counted, loader) in self._confusions.items():
            rows = counted.table()
            if rows:
                picture = confusion.draw(rows, confusion.class_names(loader, len(rows)))
                self._write(event_file.event(step, [event_file.image(f"visuals/confusion_{name}", *picture)]))
            if counted.problem:
                self.warn(counted.problem)

    def _x(self, record: EpochRecord) -> int:
        return x_of(record, self._x_axis)

    def _scalars(
        self, record: EpochRecord, network: nn.Module | None, lr: float | None = None
    ) -> list[Summary.Value]:
        scalars = {tag(name): value for name, value in record.metrics.items()}
        scalars |= {f"time/{name}": value for name, value in record.times.items()}
        scalars |= self._goal_scalars.after(record)
        if lr is not None:
            scalars.setdefault("train/lr", lr)
        norm = histograms.gradient_norm(network) if network is not None else None
        if norm is not None:
            scalars.setdefault("train/grad_norm", norm.item())  # a user's column with this name has precedence
        return [event_file.scalar(name, value) for name, value in scalars.items()]

    @_guarded
    def _add(self, event: Event) -> None:
        if self._file is None and self._waiting is None:
            self.warn("its run has ended")
        self._write(event)

    def _write(self, *written: Event) -> None:
        if self._waiting is not None:
            self._waiting += written
        elif self._file:
            self._file.write(*written)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file:
            file.close()


@dataclass(frozen=True)
class RunLogs:
    """Creates the TensorBoard listener of each run."""

    histogram_every: int = 1

    def follow(
        self,
        folder: RunFolder,
        attempt: int,
        details: Mapping[str, Any],
        kinds: Mapping[str, str] | None,
        goal: Goal | None,
        x_axis: str | None,
    ) -> RunLog:
        """Return the TensorBoard listener of an attempt at a run."""
        name = folder.path.parent.name
        return RunLog(name, folder, attempt, details, self.histogram_every, kinds, goal, x_axis)

    def counts(self) -> Confusion:
        """Return a confusion matrix."""
        return Confusion()


def writer_of(board: RunListener | None, folder: Path) -> SummaryWriter:
    """Return a SummaryWriter into a run's event file; without a file, it drops all values."""
    if isinstance(board, RunLog):
        return board.writer
    from runmanager.tensorboard.summary_writer import RunWriter

    return RunWriter(folder, lambda _: None)


def end_abandoned(folder: Path, outcome: Outcome) -> None:
    """Write the outcome of a run whose process has ended, to an additional file; never raise."""
    if outcome.status is not Status.HUNG or not event_file.event_files(folder):
        return  # the run can be resumed, or has no event file
    with contextlib.suppress(OSError):
        file = event_file.EventFile(
            folder, max(files.journals_by_attempt(folder), default=1), outcome.epochs + 1
        )
        file.write(*_ending(outcome, folder))
        file.close()


def _is_epoch(event: Event) -> bool:
    """Whether an event has the scalars of an epoch."""
    return any(value.tag == tag("epoch duration") for value in event.summary.value)


def _ending(outcome: Outcome, folder: Path) -> list[Event]:
    """Return the final events of a run: the cause, unless it completed, and the end of its HParams session."""
    values = [event_file.text_value(event_file.ERROR, _error(outcome, folder))] if outcome.error else []
    values.append(event_file.session_end(success=outcome.status is Status.COMPLETED))
    return [event_file.event(outcome.epochs, [value]) for value in values]


def _error(outcome: Outcome, folder: Path) -> str:
    """Return the cause of a run's end as Markdown, with the end of its error.log."""
    log = ""
    if outcome.status.has_error_log:
        with contextlib.suppress(OSError):
            log = files.read_end(folder / files.ERROR_LOG, 4 * _LONGEST).decode("utf-8", "replace")
    return textwrap.indent(f"{outcome.error[:_LONGEST]}\n\n{log[-_LONGEST:]}".rstrip(), "    ", lambda _: True)


def _settings_table(params: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    """Return a Markdown table of hyperparameters, then further details."""
    settings = {name: "none" if value is None else value for name, value in params.items()}
    rows = [*settings.items(), *(row for row in _flattened(details) if row not in settings.items())]
    lines = [f"| {_table_cell(name)} | {_table_cell(value)} |" for name, value in rows]
    return "\n".join(["| setting | value |", "|---|---|", *lines])


def _flattened(details: Mapping[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in details.items():
        flat += _flattened(value) if isinstance(value, Mapping) else [(name, value)]
    return flat


def _table_cell(value: Any) -> str:
    escaped = text(plain(value)).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())


class GoalScalars:
    """Tracks the goal over the epochs of a run; without a goal, the default metric.

    >>> scalars = GoalScalars(Goal("f1", 1))
    >>> scalars.after(EpochRecord(1, {"f1": 0.5, "epoch duration": 2.0, "run duration": 3.0}, {}))["Goal/best"]
    0.5
    """

    def __init__(self, goal: Goal | None = None) -> None:
        self._is_set = goal is not None
        self._goal = goal
        self._names: dict[str, None] = {}  # the names of the metrics so far
        self._values: dict[str, float] = {}

    def after(self, record: EpochRecord) -> dict[str, float]:
        """Return the scalars of an epoch; empty before the goal has a value."""
        metrics = record.metrics
        if not self._is_set and not metrics.keys() <= self._names.keys():
            self._names |= dict.fromkeys(metrics)
            goal = default_goal(self._names)
            if goal != self._goal:  # the metric is new in this epoch
                self._goal, self._values = goal, {}
        value = metrics.get(self._goal.metric) if self._goal else None
        if self._goal and value is not None and abs(value) <= event_file.LARGEST:
            if BEST not in self._values or self._goal.sign * (value - self._values[BEST]) > 0:
                after = metrics.get("run duration", 0.0)
                self._values |= {BEST: value, BEST_AFTER: after, BEST_EPOCH: record.epoch}
            self._values[LAST] = value
        if not self._values:
            return {}
        return {**self._values, EPOCH_SECONDS: metrics.get("epoch duration", 0.0)}


def _step_events(block: Block) -> list[Event]:
    """Return one event per step of a block."""
    values: dict[int, list[Summary.Value]] = {}
    for name, (steps, numbers) in block.items():
        for step, number in zip(steps, numbers, strict=True):
            values.setdefault(step, []).append(event_file.scalar(step_tag(name), number))
    return [event_file.event(step, values[step]) for step in sorted(values)]
