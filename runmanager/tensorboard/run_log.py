"""The TensorBoard listener of a run: writes scalars, hparams, texts, images and graph to an event file."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from typing import Any

import torch
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter

from runmanager.core import files
from runmanager.core.contracts import RunListener
from runmanager.core.experiment import Experiment, RunFolder
from runmanager.core.goal import Goal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.steps import Block
from runmanager.core.values import text
from runmanager.core.x_axis import x_of, x_value
from runmanager.errors import RunsWarning
from runmanager.tables.usual_goals import assumption, default_goal, goal_of_kept
from runmanager.tensorboard import event_file, hparams, network_content, pictures
from runmanager.tensorboard.hparams import BEST, BEST_AFTER, BEST_EPOCH, EPOCH_SECONDS, LAST, tag
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
"""The custom-scalars page: category -> chart -> regular expressions of its tags.

"side by side" suits many runs, "overview" suits few runs.
"""

SAMPLES = "visuals/samples"
"""The tag of the images of the first batch."""


@dataclass(frozen=True)
class RunLogs:
    """Creates the TensorBoard listener of each run."""

    histogram_every: int = 1

    def follow(
        self,
        folder: RunFolder,
        attempt: int,
        details: Mapping[str, Any],
        goal: Goal | None,
        x_axis: str | None,
    ) -> "RunLog":
        """Return the TensorBoard listener of an attempt at a run."""
        return RunLog(folder, attempt, details, self.histogram_every, goal, x_axis)

    def counts(self) -> pictures.Confusion:
        """Return a confusion matrix."""
        return pictures.Confusion()


class _FirstInput:
    """A hook that captures a network's first input, without an extra pass and without random numbers.

    The hook of a copied or saved network does nothing.
    """

    board: "RunLog | None" = None
    handle: RemovableHandle | None = None
    images: torch.Tensor | None = None  # the images for the sheet

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.board is not None and self.handle is not None:
            with self.board.guard("first input"):
                self.handle.remove()
                if inputs and getattr(inputs[0], "ndim", 0) == 4:  # noqa: PLR2004 - (N, C, H, W)
                    self.images = pictures.samples(inputs[0])

    def __reduce__(self) -> tuple[type["_FirstInput"], tuple[()]]:
        return _FirstInput, ()


@dataclass(eq=False)
class RunLog(RunListener):
    """Writes the event file of one attempt. No method raises.

    The text ``run/config`` shows `details` beside the hyperparameters. `histogram_every` is in epochs; 0 means
    never. `goal` and `x_axis` are the experiment's.
    """

    folder: RunFolder
    attempt: int
    details: Mapping[str, Any]
    histogram_every: int = 1
    goal: Goal | None = None
    x_axis: str | None = None
    _has_goal: bool = False
    _metrics: dict[str, None] = field(default_factory=dict)  # the metrics so far, to choose a default goal
    _of_goal: dict[str, float] = field(default_factory=dict)  # the scalars of the goal
    _file: BufferedWriter | None = None
    _waiting: list[Event] | None = field(default_factory=list)  # events to write when the file is open
    _first: list[Event] = field(default_factory=list)  # evaluations before the first epoch
    _first_input: _FirstInput = field(default_factory=_FirstInput)
    _is_described: bool = False  # whether the samples and the graph are written
    _lr: float | None = None  # learning rate at the start of the epoch
    _images: list[Summary.Value] = field(default_factory=list)  # images of the epoch
    _last: tuple[int, nn.Module | None] = (0, None)  # x value and network of the last epoch
    _drawn: int = 0  # x value of the last histograms
    _confusions: dict[str, tuple[pictures.Confusion, Any]] = field(default_factory=dict)
    _has_warned: bool = False
    _writer: SummaryWriter | None = None

    def attempt_began(
        self, records: Sequence[EpochRecord] = (), *, keep: str | None = None, last_step: int = 0
    ) -> None:
        """Create the event file; epochs that the earlier files lack are written again."""
        with self.guard("attempt_began"):
            folder, params = self.folder.path, self.folder.params
            self.goal = self.goal or goal_of_kept([{"keep": keep}])
            self._has_goal = self.goal is not None
            steps = [x_of(record, self.x_axis) for record in records]
            epochs = [
                event_file.scalars(step, self._numbers(record))
                for step, record in zip(steps, records, strict=True)
            ]
            is_resumed = bool(records or last_step)
            written: list[int] = []  # the steps of epochs in the earlier files
            earlier = event_file.event_files(folder)
            for path in earlier:
                if not is_resumed:
                    path.unlink(missing_ok=True)
                    continue
                event_file.reopen_session(path)
                for event in event_file.read_events(path):
                    written += [event.step for value in event.summary.value if value.tag == hparams.EPOCH]
            if written[: len(steps)] != steps[: len(written)]:  # an epoch is lost: all are written again
                written, first_step = [], 0
            elif len(written) > len(steps):  # the last epochs are executed again
                first_step = 1 + max(steps, default=0)
            else:
                first_step = 1 + max([last_step, *steps]) if is_resumed else 0
            self._is_described = bool(written)
            self._file = event_file.begin_file(folder, self.attempt, first_step)
            form = hparams.read_format(folder.parent)
            values = [hparams.session_start(self.folder, form)]
            if not (first_step and earlier):
                layout = Layout()
                for category, charts in CHARTS.items():
                    drawn = layout.category.add(title=category)
                    for name, tags in charts.items():
                        drawn.chart.add(title=name).multiline.tag.extend(tags)
                custom = "custom_scalars__config__", layout.SerializeToString(), "custom_scalars"
                values.append(event_file.text_value(*custom))
                design, repeats = Experiment(folder.parent).design, ", ".join(form.repeats)
                if design.repeats is None:
                    repeats = assumption(form.repeats)
                facts = {"goal": str(self.goal) if self.goal else "", "repeats": repeats}
                details = {**{name: fact for name, fact in facts.items() if fact}, **self.details}
                values.append(event_file.text_value("run/config", _settings_table(params, details)))
            waiting, self._waiting = self._waiting or [], None
            opening = [event_file.event(first_step, [value]) for value in values]
            first = [] if is_resumed else self._first  # the file of the first attempt has the first events
            self._write(*opening, *first, *epochs[len(written) :], *waiting)

    def run_began(self, run: Any, network: nn.Module | None, loader: Any) -> None:
        """Capture the network's first input, to show it after the first epoch."""
        with self.guard("run_began"):
            if network is not None and not isinstance(network, torch.jit.ScriptModule):
                self._first_input.handle = network.register_forward_pre_hook(self._first_input)
                self._first_input.board = self

    def epoch_began(self, learning_rate: float | None) -> None:
        """Store the learning rate, to show it after the epoch."""
        self._lr = learning_rate

    def evaluated(self, values: Mapping[str, float]) -> None:
        """Write metrics from before the first epoch as step 0, if the attempt begins with the first epoch."""
        with self.guard("evaluated"):
            event = event_file.scalars(0, {tag(name): value for name, value in values.items()})
            if self._waiting is None:
                self._write(event)
            else:
                self._first.append(event)

    def classes_counted(self, name: str, counts: pictures.Confusion, loader: Any) -> None:
        """Store a confusion matrix, to draw the last one of each evaluation."""
        self._confusions[name] = counts, loader

    def steps_logged(self, block: Block) -> None:
        """Write the values of single steps: one event per step, its tags ``steps/name``."""
        with self.guard("steps_logged"):
            values: dict[int, dict[str, float]] = {}
            for name, (steps, numbers) in block.items():
                for step, number in zip(steps, numbers, strict=True):
                    values.setdefault(step, {})[f"steps/{name}"] = number
            self._write(*(event_file.scalars(step, values[step]) for step in sorted(values)))

    def image_logged(self, name: str, image: Any) -> None:
        """Draw an image, to write it at the end of the epoch."""
        with self.guard("image_logged"):
            self._images.append(event_file.image(f"images/{name}", *pictures.picture(image)))

    def epoch_ended(self, record: EpochRecord, network: nn.Module | None) -> None:
        """Write scalars, images and histograms; the first time also sample images and the graph."""
        with self.guard("epoch_ended"):
            step = x_value(record, self.x_axis)
            if step is None:
                step = record.epoch
                axis = f"no x_axis={self.x_axis!r} in epoch {record.epoch}"
                self._warn(f"{axis}, so its number is the x value: track it")
            self._last = step, network
            numbers = self._numbers(record)
            if self._lr is not None:
                numbers.setdefault("train/lr", self._lr)
            tensors, gradients = network_content.tensors(network) if network is not None else ({}, [])
            if gradients:  # a user's column with this name has precedence
                numbers.setdefault("train/grad_norm", nn.utils.get_total_norm(gradients).item())
            drawn, self._images = self._images, []
            self._write(event_file.scalars(step, numbers))
            if drawn:
                self._write(event_file.event(step, drawn))
            if network is None:
                return
            if not self._is_described:
                self._is_described = True
                self._first_input.board = None
                if self._first_input.images is not None:
                    with self.guard("samples"):
                        sheet = pictures.sheet(self._first_input.images)
                        self._write(event_file.event(0, [event_file.image(SAMPLES, *sheet)]))
                graph = None
                with contextlib.suppress(Exception):  # fx cannot trace every network: then there is no graph
                    graph = network_content.graph(network)
                if graph is not None:
                    self._write(Event(wall_time=time.time(), graph_def=graph))
            if tensors and self.histogram_every and (record.epoch - 1) % self.histogram_every == 0:
                self._draw_histograms(step, tensors)

    def run_ended(self, outcome: Outcome) -> None:
        """Write the last images and the outcome, and close the file."""
        with self.guard("run_ended"):
            try:
                if self._first_input.handle is not None:
                    self._first_input.handle.remove()
                step, network = self._last
                if outcome.status is Status.COMPLETED:
                    if network is not None and self.histogram_every and step != self._drawn:
                        tensors, _ = network_content.tensors(network)
                        if tensors:
                            self._draw_histograms(step, tensors)
                    for name, (counts, loader) in self._confusions.items():
                        self._draw_confusion(step or outcome.epochs, name, counts, loader)
                if not outcome.status.can_go_on:  # without an end of the session, TensorBoard shows "unknown"
                    self._write(*event_file.ending(outcome, self.folder.path))
            finally:
                self._last, self._confusions = (0, None), {}
                file, self._file = self._file, None
                if file:
                    file.close()

    @contextlib.contextmanager
    def guard(self, method: str) -> Iterator[None]:
        """Turn errors in a logging call into one warning per run; a disk without space ends the logging."""
        try:
            yield
        except OSError as error:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                if file:
                    file.close()
            self._warn(f"logging stopped: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - no logging call may end a run
            self._warn(f"{method}: {type(error).__name__}: {error}")

    @property
    def writer(self) -> SummaryWriter:
        """A SummaryWriter that writes into this file, created on first use."""
        if self._writer is None:
            self._writer = RunWriter(self.folder.path, self._add)
        return self._writer

    def _add(self, event: Event) -> None:
        with self.guard("add"):
            if self._file is None and self._waiting is None:
                self._warn("its run has ended")
            self._write(event)

    def _write(self, *events: Event) -> None:
        if self._waiting is not None:
            self._waiting += events
        elif self._file:
            self._file.write(event_file.framed(*(event.SerializeToString() for event in events)))
            self._file.flush()

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            path = self.folder.path
            message = f"TensorBoard lacks some content ({problem}); training goes on"
            warnings.warn(f"{path.parent.name}/{path.name}: {message}", RunsWarning, stacklevel=user_level())

    def _numbers(self, record: EpochRecord) -> dict[str, float]:
        """Return the scalars of an epoch; those of the goal follow the goal over the epochs of the run.

        Without a goal, the default metric counts. Before the goal has a value, it has no scalars.
        """
        metrics = record.metrics
        numbers = {tag(name): value for name, value in metrics.items()}
        numbers |= {f"time/{name}": value for name, value in record.times.items()}
        if not self._has_goal and not metrics.keys() <= self._metrics.keys():
            self._metrics |= dict.fromkeys(metrics)
            goal = default_goal(self._metrics)
            if goal != self.goal:  # the metric is new in this epoch
                self.goal, self._of_goal = goal, {}
        value = metrics.get(self.goal.metric) if self.goal else None
        if self.goal and value is not None and abs(value) <= event_file.LARGEST:
            best = self._of_goal.get(BEST)
            if best is None or self.goal.sign * (value - best) > 0:
                after = metrics.get("run duration", 0.0)
                self._of_goal |= {BEST: value, BEST_AFTER: after, BEST_EPOCH: record.epoch}
            self._of_goal[LAST] = value
        if self._of_goal:
            numbers |= {**self._of_goal, EPOCH_SECONDS: metrics.get("epoch duration", 0.0)}
        return numbers

    def _draw_histograms(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self._drawn = step
        with self.guard("histograms"):
            stats = network_content.statistics(tensors)
            if stats:
                values = [event_file.histogram(name, numbers) for name, numbers in stats.items()]
                self._write(event_file.event(step, values))

    def _draw_confusion(self, step: int, name: str, counts: pictures.Confusion, loader: Any) -> None:
        with self.guard("confusion"):
            if rows := counts.table():
                picture = pictures.draw(rows, pictures.class_names(loader, len(rows)))
                image = event_file.image(f"visuals/confusion_{name}", *picture)
                self._write(event_file.event(step, [image]))
            if counts.problem:
                self._warn(counts.problem)


def writer_of(board: RunListener | None, folder: Path) -> SummaryWriter:
    """Return a SummaryWriter into a run's event file; without a file, it drops all values."""
    return board.writer if isinstance(board, RunLog) else RunWriter(folder, lambda _: None)


def end_abandoned(folder: Path, outcome: Outcome) -> None:
    """Write the outcome of a run whose process has ended, to an additional file; never raise."""
    if outcome.status is not Status.HUNG or not event_file.event_files(folder):
        return  # the run can be resumed, or has no event file
    attempt = max(files.journals_by_attempt(folder), default=1)
    with contextlib.suppress(OSError), event_file.begin_file(folder, attempt, outcome.epochs + 1) as file:
        for event in event_file.ending(outcome, folder):
            file.write(event_file.framed(event.SerializeToString()))


def _settings_table(params: Mapping[str, Any], details: Mapping[str, Any]) -> bytes:
    """Return a Markdown table of hyperparameters, then further details, some of them in mappings."""
    settings = {name: "none" if value is None else value for name, value in params.items()}
    rows = list(settings.items())
    for name, detail in details.items():
        facts = detail.items() if isinstance(detail, Mapping) else [(name, detail)]
        rows += [fact for fact in facts if fact not in settings.items()]
    lines = ["| setting | value |", "|---|---|"]
    for row in rows:
        escaped = [text(cell).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in row]
        lines.append(f"| {' | '.join(' '.join(cell.split()) for cell in escaped)} |")
    return "\n".join(lines).encode("utf-8", "replace")


class RunWriter(SummaryWriter):
    """A SummaryWriter that passes events to `write` in the calling thread, and has no file of its own.

    `add_embedding` writes its files to `folder`.
    """

    def __init__(self, folder: Path, write: Callable[[Event], None]) -> None:
        self._sink = _Sink(folder, write)
        super().__init__(log_dir=str(folder))

    def _get_file_writer(self) -> FileWriter:
        writer: Any = FileWriter.__new__(FileWriter)
        writer.event_writer = self._sink
        return writer  # type: ignore[no-any-return]  # torch annotates neither

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, walltime: Any = None
    ) -> None:
        """Add scalars as ``main_tag/name``; torch would show each name as another run."""
        for name, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{name}", value, global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: Any,
        metric_dict: Any,
        hparam_domain_discrete: Any = None,
        run_name: Any = None,
        global_step: Any = None,
    ) -> None:
        """Add only the metrics, as scalars, as the event file already has the run's HParams."""
        del hparam_dict, hparam_domain_discrete, run_name
        for name, value in metric_dict.items():
            self.add_scalar(name, value, global_step)


class _Sink:
    """The part of an EventFileWriter that torch's FileWriter calls."""

    def __init__(self, folder: Path, write: Callable[[Event], None]) -> None:
        self._folder = folder
        self.add_event = write

    def get_logdir(self) -> str:
        return str(self._folder)

    def flush(self) -> None:
        """Do nothing, as `write` does not buffer."""

    close = reopen = flush
