"""The rows of runs, and the columns that all runs of a grid share."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from runmanager.core.experiment import RunFolder
from runmanager.core.goal import KEPT, Goal, default_goal
from runmanager.core.outcome import BatchProgress, EpochRecord
from runmanager.core.values import column
from runmanager.drawing.table import Table
from runmanager.tables.cells import brief, concise, duration, steady

COUNT, RUN, EPOCH, DEVICE, DURATION = "", "run", "epoch", "device", "run duration"

_SECONDS, _METRIC, _DRAWN = "0.00638 s", "0.0000", "0.0001569"  # texts of usual width
_LEAST_PROGRESS = 0.01  # fraction of a run after which its speed is used for an estimate


class RunTable:
    """The columns of all runs of a grid, which never become narrower, so that printed rows stay aligned."""

    def __init__(self, axes: Iterable[str], goals: Sequence[Goal]) -> None:
        self.goals = goals
        self.devices: set[str] = set()  # devices of runs that have begun
        self._axes = [column(axis) for axis in axes]
        self._texts = {COUNT, DEVICE}  # columns that have values other than numbers
        self._seen: dict[str, None] = {}  # metrics
        self._of_goals: Sequence[str] = ()
        self._metrics: Sequence[str] = ()  # with a column: metrics of the goals, losses and accuracies
        self._widest = dict.fromkeys([COUNT, RUN, EPOCH, DEVICE, *self._axes], "") | {DURATION: _SECONDS}

    def add_run(self, folder: RunFolder) -> Mapping[str, str]:
        """Widen the columns for a run; return the texts that do not change while it is executed."""
        row = {RUN: str(folder.number)}
        for axis, value in folder.params.items():
            if (name := column(axis)) in self._axes:
                row[name] = concise(value)
                if not isinstance(value, int | float):
                    self._texts.add(name)
                elif row[name] != brief(value):  # a search draws such numbers, and the next one may be longer
                    self.widen({name: _DRAWN})
        self.widen(row)
        return row

    def add_metrics(self, names: Iterable[str]) -> None:
        """Choose the columns of metrics."""
        self._seen |= dict.fromkeys(names)
        goals = self.goals or filter(None, [default_goal(self._seen)])
        self._of_goals = [name for goal in goals for name in (f"{KEPT}{goal.metric}", goal.metric)]
        usual = [name for name in self._seen if name.endswith(("loss", "accuracy")) and " " not in name]
        usual.sort(key=lambda name: "_" not in name)  # metrics of the training are last
        names = dict.fromkeys([*self._of_goals, *usual])
        self._metrics = [name for name in names if name in self._seen and name != DURATION]
        self.widen(dict.fromkeys(self._metrics, _METRIC))

    def lines(self, rows: Sequence[Mapping[str, str]], width: int) -> tuple[list[str], list[str]]:
        """Return the lines of the headings, and one line per row, with the columns that fit."""
        for row in rows:
            self.widen(row)
        axes = [*dict.fromkeys([*self._axes, *[DEVICE] * (len(self.devices) > 1)])]
        names = [COUNT, RUN, *axes, EPOCH, *self._metrics, DURATION]
        drawn, _ = Table(
            names,
            [[row.get(name, "") for name in names] for row in (self._widest, *rows)],
            right=set(names) - self._texts,
            first=[COUNT, RUN, EPOCH, *axes[:1], *self._of_goals, DURATION, *axes],
        ).fitted(width)
        lines = [line.plain for line in drawn]
        first = len(lines) - len(rows)
        return lines[: first - 1], lines[first:]

    def widen(self, row: Mapping[str, str]) -> None:
        """Widen the columns for the texts of a row."""
        for name, content in row.items():
            self._widest[name] = max(self._widest.get(name, ""), content, key=cell_len)


@dataclass(eq=False)
class Running:
    """The progress of a run that is being executed; all times are on the same clock (s)."""

    folder: RunFolder
    fixed: Mapping[str, str]  # the columns that do not change
    zero: float  # time at which the run duration was 0, which all attempts share
    heard: float = 0.0  # time of the last message
    first: int = 1  # the first epoch of this attempt
    committed: int = 0
    # the last step; the batch is 0 after an epoch
    step: BatchProgress = BatchProgress(0, 0)  # noqa: RUF009 - it is immutable
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last epoch; the loss may be newer

    def hear(self, news: EpochRecord | BatchProgress, now: float) -> None:
        """Update the progress by a message."""
        self.heard, self.first = now, self.first if self.step.epoch else news.epoch
        if isinstance(news, EpochRecord):
            self.step, self.committed = self.step._replace(epoch=news.epoch, batch=0), news.epoch
            self.metrics, self.zero = news.metrics, now - news.metrics.get(DURATION, now - self.zero)
        else:
            self.step, self.committed = news, news.epoch - 1
            self.metrics = self.metrics if news.loss is None else {**self.metrics, "loss": news.loss}

    @property
    def done(self) -> float:
        """The fraction of the run that is done; 0 if the number of epochs is unknown."""
        of_epoch = self.step.batch / (self.step.num_batches or math.inf)
        return (self.committed + of_epoch) / (self.step.num_epochs or math.inf)

    @property
    def total(self) -> float | None:
        """The estimated duration of all epochs (s); None before there is enough progress."""
        return (self.heard - self.zero) / self.done if self.done > _LEAST_PROGRESS else None

    def row(self, now: float) -> Mapping[str, str]:
        """Return the row of the run while it is executed."""
        return self.cells("…", self.step.epoch, duration(int(now - self.zero), 0), self.metrics)

    def cells(self, count: str, epoch: int, seconds: str, metrics: Mapping[str, float]) -> Mapping[str, str]:
        """Return the text of all columns."""
        of = f"/{self.step.num_epochs}" if self.step.num_epochs else ""
        texts = {name: steady(value) for name, value in metrics.items()}
        epochs = f"{epoch}{of}" if self.step.epoch else ""
        return {**texts, **self.fixed, COUNT: count, EPOCH: epochs, DURATION: seconds}

    @property
    def position(self) -> str:
        """The current step."""
        of = f"/{self.step.num_batches}" if self.step.num_batches else ""
        return f"step {self.step.batch}{of}" if self.step.batch else ""
