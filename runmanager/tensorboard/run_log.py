"""The TensorBoard listener of a run: writes scalars, hparams, texts, images and graph to an event file."""

import contextlib
import copy
import math
import random
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import torch
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.versions_pb2 import VersionDef
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
from torch import fx, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.tensorboard.summary import custom_scalars

from runmanager.core import files
from runmanager.core.contracts import Block, Boards, RunListener
from runmanager.core.experiment import RunFolder
from runmanager.core.goal import Goal, default_goal, goal_of_kept, parse_goal, x_of, x_value
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.values import text
from runmanager.devices.torch_devices import quiet
from runmanager.errors import warn
from runmanager.tensorboard import event_file, histograms, hparams, pictures
from runmanager.tensorboard.event_options import TensorBoard
from runmanager.tensorboard.hparams import BEST, BEST_AFTER, BEST_EPOCH, EPOCH_SECONDS, KEPT, LAST, tag
from runmanager.tensorboard.pictures import Confusion

CHARTS = {
    "side by side": {  # for many runs: two charts in a row
        "goal": ["Multiline", ["^Goal/"]],
        "goal, best so far": ["Multiline", ["^Run/best "]],
        "loss of the training": ["Multiline", ["^loss/train$"]],
        "loss of the evaluation": ["Multiline", ["^loss/(?!train$)"]],
        "accuracy of the training": ["Multiline", ["^accuracy/train$"]],
        "accuracy of the evaluation": ["Multiline", ["^acc(uracy)?/(?!train$)"]],
    },
    "overview": {
        "loss": ["Multiline", ["^loss/"]],
        "accuracy": ["Multiline", ["^acc(uracy)?/"]],
        "parts of an epoch (s)": ["Multiline", ["^time/phase_"]],
    },
}
"""The custom-scalars page: category -> chart -> regular expressions of its tags."""

SAMPLES = "visuals/samples"
"""The tag of the images of the first batch."""

# the facts in the text run/config
_FACTS = ("device", "device_name", "parameters", "commit", "command")
_LONGEST = 10_000  # the maximum number of bytes of the end of an error.log
_LEAST = 32  # minimum number of values of a histogram; with fewer values, it has mostly gaps
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _FirstInput:
    """A hook that captures a network's first input, without an extra pass and without random numbers."""

    board: "RunLog | None" = None
    handle: RemovableHandle | None = None
    images: torch.Tensor | None = None  # the images for the sheet

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.board is not None and self.handle is not None:
            with self.board.guard("first input"):
                self.handle.remove()
                is_batch = bool(inputs) and isinstance(inputs[0], torch.Tensor)
                if is_batch and inputs[0].ndim == 4:  # noqa: PLR2004 - (N, C, H, W)
                    self.images = pictures.samples(inputs[0])

    def __reduce__(self) -> tuple[type["_FirstInput"], tuple[()]]:
        return _FirstInput, ()


def boards_of(tensorboard: bool | TensorBoard) -> Boards:
    """Return the classes of TensorBoard's objects."""
    every = tensorboard.histogram_every if isinstance(tensorboard, TensorBoard) else 1
    return Boards(partial(RunLog, histogram_every=every), Confusion)


@dataclass(eq=False)
class RunLog(RunListener):
    """Writes the event file of one attempt. `histogram_every` is in epochs, 0 for never. No method raises."""

    folder: RunFolder
    attempt: int
    goal: Goal | None = None
    x_axis: str | None = None
    kinds: Mapping[str, str] | None = None
    histogram_every: int = 1
    _kept: Goal | None = None  # by which weights are kept
    _score: float = -math.inf  # of the epoch that ranks the run
    _goals: list[Goal] = field(default_factory=list)  # a search has several
    _metrics: dict[str, None] = field(default_factory=dict)  # the metrics so far, to choose a default goal
    _of_goal: dict[str, float] = field(default_factory=dict)  # the scalars of the goal
    _file: BinaryIO | None = field(default_factory=BytesIO)  # in memory until the attempt begins
    _first: list[Event] = field(default_factory=list)  # evaluations before the first epoch
    _first_input: _FirstInput = field(default_factory=_FirstInput)
    _is_described: bool = False  # whether the samples and the graph are written
    _images: dict[str, Summary.Image] = field(default_factory=dict)  # images of the epoch
    _last: tuple[int, nn.Module | None] = (0, None)  # x value and network of the last epoch
    _drawn: int = 0  # x value of the last histograms
    _confusions: dict[str, tuple[Confusion, Any]] = field(default_factory=dict)
    _has_warned: bool = False

    def attempt_began(
        self,
        records: Sequence[EpochRecord] = (),
        facts: Mapping[str, Any] = MappingProxyType({}),
        last_step: int = 0,
    ) -> None:
        """Create the event file; epochs that the earlier files lack are written again."""
        with self.guard("attempt_began"):
            folder = self.folder.path
            form = files.read_json(folder.parent / files.HPARAMS) or {"kinds": self.kinds or {}}
            self._kept = goal_of_kept([facts]) if "keep" in facts else None
            goal = self.goal or self._kept
            self._goals = [goal, *map(parse_goal, form.get("goals", ()))] if goal else []
            steps = [x_of(record, self.x_axis) for record in records]
            epochs = [
                event_file.event(step, self._numbers(record))
                for step, record in zip(steps, records, strict=True)
            ]
            is_resumed = bool(records or last_step)
            earlier = event_file.event_files(folder) if self.attempt > 1 else []
            while earlier and not is_resumed:
                earlier.pop().unlink(missing_ok=True)
            num_written, first_step = _continued(earlier, steps, last_step) if is_resumed else (0, 0)
            self._is_described = num_written > 0
            waiting, self._file = self._file, event_file.begin_file(folder, self.attempt, first_step)
            start = hparams.session_start(self.folder, form)
            opening = [event_file.event(first_step, {event_file.SESSION: start})]
            if not (first_step and earlier):
                charts = custom_scalars(CHARTS)  # type: ignore[no-untyped-call]
                opening.append(Event(step=first_step, wall_time=time.time(), summary=charts))
                params = self.folder.params
                details = {"goal": ", ".join(map(str, self._goals))} if self._goals else {}
                details |= {name: facts[name] for name in _FACTS if facts.get(name) and name not in params}
                rows = [*params.items(), *details.items(), *facts.get("versions", {}).items()]
                table = "| setting | value |\n|---|---|"
                for row in rows:
                    cells = ["none" if cell is None else " ".join(text(cell).split()) for cell in row]
                    line = " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in cells)
                    table += f"\n| {line.replace('<', '&lt;')} |"
                opening.append(event_file.event(first_step, {"run/config": table}))
            first = [] if is_resumed else self._first  # the file of the first attempt has the first events
            event_file.write(self._file, *opening, *first, *epochs[num_written:])
            if isinstance(waiting, BytesIO):
                self._file.write(waiting.getvalue())
                self._file.flush()

    def run_began(self, run: Any, network: nn.Module | None, loader: Any) -> None:
        """Capture the network's first input, to show it after the first epoch."""
        with self.guard("run_began"):
            if network is not None and not isinstance(network, torch.jit.ScriptModule):
                self._first_input.handle = network.register_forward_pre_hook(self._first_input)
                self._first_input.board = self

    def evaluated(self, values: Mapping[str, float]) -> None:
        """Write metrics from before the first epoch as step 0, if the attempt begins with the first epoch."""
        with self.guard("evaluated"):
            event = event_file.event(0, {tag(name): value for name, value in values.items()})
            if isinstance(self._file, BytesIO):
                self._first.append(event)
            else:
                event_file.write(self._file, event)

    def classes_counted(self, name: str, counts: Confusion, loader: Any) -> None:
        """Store a confusion matrix, to draw the last one of each evaluation."""
        self._confusions[name] = counts, loader

    def steps_logged(self, block: Block) -> None:
        """Write the values of single steps: one event per step, its tags ``steps/name``."""
        with self.guard("steps_logged"):
            values: dict[int, dict[str, float]] = {}
            for name, (steps, numbers) in block.items():
                for step, number in zip(steps, numbers, strict=True):
                    values.setdefault(step, {})[f"steps/{name}"] = number
            event_file.write(self._file, *(event_file.event(step, values[step]) for step in sorted(values)))

    def image_logged(self, name: str, image: Any) -> None:
        """Draw an image, to write it at the end of the epoch."""
        with self.guard("image_logged"):
            self._images[f"images/{name}"] = pictures.picture(image)

    def epoch_ended(self, record: EpochRecord, network: nn.Module | None) -> None:
        """Write scalars, images and histograms; the first time also sample images and the graph."""
        with self.guard("epoch_ended"):
            step = x_value(record, self.x_axis) if self.x_axis else record.epoch
            if step is None:
                step = record.epoch
                self._warn(f"no x_axis={self.x_axis!r} in epoch {step}, so its number is the x value: track it")
            self._last = step, network
            numbers = self._numbers(record)
            if self.learning_rate is not None:  # a user's column with a name of ours has precedence
                numbers.setdefault("train/lr", self.learning_rate)
            drawn, gradients = tensors(network)
            if gradients:
                norm = self.gradient_norm  # before the gradients were clipped
                norm = nn.utils.get_total_norm(gradients) if norm is None else norm
                numbers.setdefault("train/grad_norm", norm.item())
            self._write(step, numbers)
            images, self._images = self._images, {}
            self._write(step, images)
            if network is not None and not self._is_described:
                self._is_described = True
                self._first_input.board = None
                if self._first_input.images is not None:
                    with self.guard("samples"):
                        self._write(0, {SAMPLES: pictures.sheet(self._first_input.images)})
                content = None
                with contextlib.suppress(Exception):  # fx cannot trace every network: then there is no graph
                    content = graph(network)
                if content:
                    event_file.write(self._file, Event(wall_time=time.time(), graph_def=content))
            if drawn and self.histogram_every and (record.epoch - 1) % self.histogram_every == 0:
                self._draw_histograms(step, drawn)

    def run_ended(self, outcome: Outcome) -> None:
        """Write the last images and the outcome, and close the file."""
        with self.guard("run_ended"):
            try:
                if self._first_input.handle is not None:
                    self._first_input.handle.remove()
                step, network = self._last
                if outcome.status is Status.COMPLETED:
                    drawn = tensors(network)[0]
                    if drawn and self.histogram_every and step != self._drawn:
                        self._draw_histograms(step, drawn)
                    for name, (counts, loader) in self._confusions.items():
                        self._draw_confusion(step or outcome.epochs, name, counts, loader)
                if outcome.status.can_go_on:
                    return  # without an end of the session, TensorBoard shows "unknown"
                if outcome.error:
                    cause = outcome.error
                    if outcome.status.has_error_log:
                        with contextlib.suppress(OSError):
                            end = files.read_file(self.folder.path / files.ERROR_LOG, _LONGEST)
                            cause += "\n\n" + end.decode("utf-8", "replace").rstrip()
                    self._write(outcome.epochs, {event_file.ERROR: textwrap.indent(cause, "    ", bool)})
                is_completed = outcome.status is Status.COMPLETED
                status = api_pb2.STATUS_SUCCESS if is_completed else api_pb2.STATUS_FAILURE
                info = SessionEndInfo(status=status, end_time_secs=time.time())
                self._write(outcome.epochs, {event_file.SESSION_END: HParamsPluginData(session_end_info=info)})
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

    def add(self, event: Event) -> None:
        """Write an event of the run's SummaryWriter."""
        with self.guard("add"):
            if self._file is None:
                self._warn("its run has ended")
            event_file.write(self._file, event)

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            run = "/".join(self.folder.path.parts[-2:])
            warn(f"{run}: TensorBoard lacks some content ({problem}); training goes on")

    def _write(self, step: int, contents: Mapping[str, Any]) -> None:
        if contents:
            event_file.write(self._file, event_file.event(step, contents))

    def _numbers(self, record: EpochRecord) -> dict[str, float]:
        """Return the scalars of an epoch; those of the goal follow the goal over the epochs of the run."""
        metrics = record.metrics
        numbers = {tag(name): value for name, value in metrics.items()}
        numbers |= {f"time/{name}": value for name, value in record.times.items()}
        if not (self.goal or self._kept):
            self._metrics |= dict.fromkeys(metrics)
            goal = default_goal(self._metrics)
            if goal and [goal] != self._goals:  # the metric is new in this epoch
                self._goals, self._of_goal = [goal], {}
        goals = [goal for goal in self._goals if abs(metrics.get(goal.metric, math.nan)) <= event_file.LARGEST]
        # a run is ranked by its last values, or by those of the epoch whose weights are kept
        score = self._kept.score(metrics) if self._kept else record.epoch
        if score > self._score:
            self._score, name = score, KEPT if self._kept else LAST
            self._of_goal |= {f"{name}{goal}": metrics[goal.metric] for goal in goals}
        if goals and goals[0] == self._goals[0]:
            name = f"{BEST} {goals[0]}"
            value, best = metrics[goals[0].metric], self._of_goal.get(name)
            if best is None or goals[0].sign * (value - best) > 0:
                after = metrics.get("run duration", 0.0)
                self._of_goal |= {name: value, BEST_EPOCH: record.epoch, BEST_AFTER: after}
        if self._of_goal:
            numbers |= {**self._of_goal, EPOCH_SECONDS: metrics.get("epoch duration", 0.0)}
        return numbers

    def _draw_histograms(self, step: int, values: Mapping[str, torch.Tensor]) -> None:
        self._drawn = step
        with self.guard("histograms"):
            self._write(step, histograms.histograms(values))

    def _draw_confusion(self, step: int, name: str, counts: Confusion, loader: Any) -> None:
        with self.guard("confusion"):
            if rows := counts.table():
                names = pictures.class_names(loader, len(rows))
                self._write(step, {f"visuals/confusion_{name}": pictures.draw(rows, names)})
            if counts.problem:
                self._warn(counts.problem)


def _continued(earlier: list[Path], steps: list[int], last_step: int) -> tuple[int, int]:
    """Return how many epochs the earlier files have, and the first step that supersedes theirs."""
    written: list[int] = []  # the steps of the epochs
    for path in earlier:
        event_file.reopen_session(path)
        with event_file.mapped(path) as content:
            for _, event in event_file.events_in(content):
                written += [event.step for value in event.summary.value if value.tag == hparams.EPOCH]
    if written[: len(steps)] != steps[: len(written)]:  # an epoch is lost: all are written again
        return 0, 0
    if len(written) > len(steps):  # the last epochs are executed again
        return len(written), 1 + max(steps, default=0)
    return len(written), 1 + max([last_step, *steps])


def graph(network: nn.Module) -> bytes:
    """Trace a network symbolically and return the bytes of its GraphDef.

    The trace uses a copy without values: the network, its buffers and its device do not change, and its hooks
    are not called. Any exception of torch.fx may be raised.
    """
    original = getattr(network, "_orig_mod", network)  # torch.compile wraps modules
    copies: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in original.parameters()
    }
    copies |= {id(buffer): torch.empty_like(buffer, device="meta") for buffer in original.buffers()}
    hollow = copy.deepcopy(original, copies)
    tracer = _Tracer()
    tracer.thread = threading.get_ident()
    # `quiet` admits one thread at a time, as torch.fx patches module calls for the whole process; `forward` may
    # draw numbers
    with quiet(), torch.random.fork_rng([]):
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the users' state
        try:
            traced = tracer.trace(hollow)
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            # torch.compile in another thread may restore the patch that called this tracer
            tracer.thread, tracer.root = 0, nn.Module()
    modules = dict(hollow.named_modules())
    names: dict[fx.Node, str] = {}
    nodes: list[NodeDef] = []
    for node in traced.nodes:
        target, attributes = str(node.target), {}
        name, op = node.name, node.op
        if op in ("call_module", "get_attr"):
            name = target.replace(".", "/")
        elif stack := list((node.meta.get("nn_module_stack") or {}).values()):
            name = f"{stack[-1][0].replace('.', '/')}/{name}"
        if op == "call_module":
            attributes["settings"] = AttrValue(s=modules[target].extra_repr().encode())
            op = type(modules[target]).__name__
        elif op == "call_function":
            op = getattr(node.target, "__name__", target)
        elif op == "call_method":
            op = target
        if name in names.values():  # called again
            name = f"{name}_{len(names)}"
        names[node] = name
        inputs = [names[source] for source in node.all_input_nodes]
        nodes.append(NodeDef(name=name, op=op, input=inputs, attr=attributes))
    content: bytes = GraphDef(node=nodes, versions=VersionDef(producer=22)).SerializeToString()
    return content


class _Tracer(fx.Tracer):
    """Traces the modules of its thread; modules in other threads compute as usual."""

    thread = 0  # the thread that traces

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        is_tracing = threading.get_ident() == self.thread
        # call m.forward, as the argument `forward` would call the hooks of the module
        return super().call_module(m, m.forward, args, kwargs) if is_tracing else forward(*args, **kwargs)


def tensors(network: nn.Module | None) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Return the weights and gradients of a network with enough values to draw, by tag; and all gradients."""
    drawn: dict[str, torch.Tensor] = {}
    gradients: list[torch.Tensor] = []
    for name, parameter in network.named_parameters() if network is not None else ():
        kind = ":bias" if name.rpartition(".")[2].startswith("bias") else ""
        for group, tensor in (("weights", parameter), ("weights:grad", parameter.grad)):
            if (
                tensor is not None
                and not isinstance(tensor, nn.UninitializedParameter)
                and tensor.layout == torch.strided
                and tensor.dtype in _DTYPES
                and tensor.numel() > 0
                and tensor.device.type != "meta"
            ):
                gradients += [tensor.detach()] if group != "weights" else []
                if tensor.numel() >= _LEAST:
                    drawn[f"{group}{kind}/{name}"] = tensor.detach()
    return drawn, gradients
