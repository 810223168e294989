"""Sequential repeats until the verdict names the best setting, or the better value of an axis."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runmanager.core.contracts import Decision, Search
from runmanager.core.experiment import Rule, RunFolder
from runmanager.core.grid import flat
from runmanager.core.outcome import Outcome
from runmanager.core.run import Run
from runmanager.core.state import RunResult
from runmanager.core.values import identity
from runmanager.core.wording import counted, did_you_mean, printable
from runmanager.errors import InvalidArgumentError, Problems

if TYPE_CHECKING:
    from runmanager.answers.contest import Contest


@dataclass(frozen=True)
class Decide:
    """Repeat runs until the best setting is decided, for ``run_grid(decide=..., repeats="seed")``.

    Each setting starts with the minimum number of repeats that allows a decision. Then the best setting, and
    all settings whose comparison with it is undecided, get one more repeat at a time, with the same seed. The
    search ends when no comparison is undecided, or when the budget is spent. The method is the method of
    `verdict`. A restart, after a kill or with a larger budget, continues from the journals.

    Args:
        axis: The hyperparameter whose values are compared, with all other hyperparameters equal. None compares
            settings.
        margin: The maximum difference that counts as equal, in units of the metric. With None, only identical
            results are equal.
        error: The maximum probability that the verdict is wrong, between 0 and 1.
        max_repeats: The maximum number of repeats per setting. If the grid lists no values for the repeat axis,
            its values are 0, 1, 2, ....
        max_seconds: Limit on the total time of the runs (s), after which no repeat is added. None sets no
            limit.

    Raises:
        InvalidArgumentError: An argument is invalid; the message lists all problems.

    Example:
        >>> Decide(axis="optimizer", margin=0.002)
        Decide(axis='optimizer', margin=0.002, error=0.05, max_repeats=20, max_seconds=None)
    """

    axis: str | None = None
    margin: float | None = None
    error: float = 0.05
    max_repeats: int = 20
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        problems.check_margin(self.margin, self.error)
        problems.check_count("max_repeats", self.max_repeats, 2)
        problems.check_seconds("max_seconds", self.max_seconds)
        problems.raise_if_any(InvalidArgumentError)

    @property
    def rule(self) -> Rule:
        """The rule that the experiment stores: all arguments except the budget.

        Example:
            >>> Decide(margin=0.002).rule
            Rule(axis=None, margin=0.002, error=0.05)
        """
        return Rule(self.axis, self.margin, self.error)

    def search(self, repeats: str) -> Search:
        """Create a search with this rule, for one launch of a grid.

        Args:
            repeats: The repeat axis of the grid.

        Returns:
            The search, to be used once.

        Example:
            >>> Decide().search("seed").introduction()
            '0 repeats (seed) of 0 settings, until it is decided'
        """
        return _Deciding(self, repeats)


def single_axis(repeats: Any) -> str:
    """Return the name of the single repeat axis, "" if there is not exactly one repeat axis."""
    axes = list(repeats) if isinstance(repeats, list | tuple) else [repeats]
    return axes[0] if len(axes) == 1 and isinstance(axes[0], str) else ""


def with_repeats(
    params: Mapping[Any, Any] | None, repeats: Any, decide: Decide, problems: Problems
) -> Mapping[Any, Any] | None:
    """Return a grid with the repeat axis of `decide`."""
    name = single_axis(repeats)
    if not name:
        problems.append(f"decide= repeats over one axis: name it, as repeats='seed'; got repeats={repeats!r}")
    elif name == decide.axis:
        problems.append(
            f"Decide(axis={name!r}) compares the axis that repeats={name!r} repeats: name another one"
        )
    elif params is not None and not any(
        name in (key if isinstance(key, tuple) else (key,)) for key, _ in flat(params)
    ):
        return {**params, name: list(range(decide.max_repeats))}
    return params


def repeat_by_repeat(runs: Sequence[Run], name: str, decide: Decide, problems: Problems) -> list[Run]:
    """Return the runs of the first repeats of a grid, sorted by repeat."""
    for axis in (name, decide.axis):
        if axis is not None and not all(axis in run._fields for run in runs):
            names = list(dict.fromkeys(field for run in runs for field in run._fields))
            problems.append(
                f"decide= needs the axis {axis!r} in every run; {did_you_mean(axis, names, 'it has')}"
            )
            return list(runs)
    order: dict[str, int] = {}
    repeats = [order.setdefault(identity({name: getattr(run, name)}), len(order)) for run in runs]
    pairs = sorted(zip(repeats, runs, strict=True), key=lambda pair: pair[0])
    return [run for repeat, run in pairs if repeat < decide.max_repeats]


class _Deciding(Search):
    """Requests repeats of the compared settings, as a function of the results so far."""

    def __init__(self, rule: Decide, repeats: str) -> None:
        self._rule = rule
        self._repeats = repeats
        self._runs: dict[str, list[list[RunFolder]]] = {}  # rival -> repeat -> runs
        self._asked: dict[str, int] = {}  # rival -> number of repeats requested
        self._executable: set[str] = set()
        self._fewest = 0  # the minimum number of repeats that allows a decision
        self._most = 0  # the number of repeats in the grid
        self._why = ""  # the reason why no further repeats are requested

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Sort the runs by rival and repeat."""
        from runmanager.answers.evidence import fewest

        self._executable = set(executable)
        order: dict[str, int] = {}
        for folder in runs:
            value = identity({self._repeats: folder.params[self._repeats]})
            repeat = order.setdefault(value, len(order))
            of_rival = self._runs.setdefault(self._rival(folder), [])
            of_rival += [[] for _ in range(repeat + 1 - len(of_rival))]
            of_rival[repeat].append(folder)
        self._most = max(map(len, self._runs.values()))
        self._fewest = fewest(len(self._runs) / 2 / self._rule.error)
        self._asked = {rival: min(self._fewest, len(repeats)) for rival, repeats in self._runs.items()}

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Request repeats; when all repeats have ended, compare the rivals and request further repeats."""
        if in_progress:
            return Decision()
        sentences: list[str] = []
        while True:
            asked = self._folders()
            due = [folder.id for folder in asked if folder.id in self._executable]
            if due:
                self._executable.difference_update(due)
                return Decision(due, sentences=sentences)
            read = [results[folder.id] for folder in asked]
            if any(result.status.is_due for result in read):
                self._why = "! some repeats did not end: the same command continues"
                return Decision(sentences=sentences)
            try:
                contest, rivals = self._look(asked, read)
            except InvalidArgumentError as error:  # the goal's metric may be missing in all runs
                cause = error if any(result.epochs for result in read) else "no run has an epoch"
                self._why = f"! nothing is decided: {cause}"
                return Decision(sentences=sentences)
            if not self._ask(contest, rivals, sum(run.seconds for run in read)):
                return Decision(sentences=sentences)
            from runmanager.answers.contest import UNDECIDED
            from runmanager.answers.verdict_sentence import standing

            lead = contest.leads[contest.in_state(UNDECIDED)[0]]  # a closer rival may be decided
            sentences = [
                f"after {counted(lead.n, contest.unit)}: {contest.names[contest.order[0]]} is {lead.mean:.2g} "
                f"ahead, evidence {lead.evidence:.2g} ({lead.least:g} decides)"
                if lead.n > self._fewest
                else f"{': '.join(standing(contest))}; this grid has at most {self._most} {contest.unit}s"
            ]

    def left_out(self) -> Collection[str]:
        """Return the repeats that are not requested yet."""
        every = (folder.id for repeats in self._runs.values() for runs in repeats for folder in runs)
        return set(every) - {folder.id for folder in self._folders()}

    def introduction(self) -> str:
        """Return a sentence with the number of rivals and repeats."""
        axis, number = self._rule.axis, len(self._runs)
        rivals = counted(number, "setting") if axis is None else f"{number} values of {printable(axis)}"
        fewest = f"{self._fewest} to " if self._fewest < self._most else ""
        repeats = f"{fewest}{counted(self._most, 'repeat')} ({printable(self._repeats)})"
        return f"{repeats} of {rivals}, until it is decided"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return the reason why an undecided grid got no further repeats; "" for a decided grid."""
        return self._why

    def _folders(self) -> list[RunFolder]:
        """Return the requested runs, sorted by repeat."""
        most = max(self._asked.values(), default=0)
        return [
            folder
            for repeat in range(most)
            for rival, number in self._asked.items()
            if repeat < number
            for folder in self._runs[rival][repeat]
        ]

    def _rival(self, folder: RunFolder) -> str:
        axis = self._rule.axis
        setting = {name: value for name, value in folder.params.items() if name != self._repeats}
        return identity(setting if axis is None else {axis: setting[axis]})

    def _look(self, asked: Sequence[RunFolder], results: Sequence[RunResult]) -> tuple["Contest", list[str]]:
        """Compare the rivals by the requested repeats; return the contest, and the compared rivals in order."""
        from runmanager.answers.contest import Contest
        from runmanager.answers.ranking import ranking_of
        from runmanager.tables.columns import runs_table

        table, rule = runs_table({asked[0].path.parent.name: results}), self._rule
        contest = Contest(table, ranking_of(table, repeats=self._repeats), rule.axis, rule.margin, rule.error)
        rivals = dict(zip(contest.rivals.tolist(), map(self._rival, asked), strict=True))
        return contest, [rivals[code] for code in contest.positions]

    def _ask(self, contest: "Contest", rivals: Sequence[str], seconds: float) -> bool:
        """Request one more repeat of each undecided rival; return whether any repeat was requested."""
        from runmanager.answers.contest import UNDECIDED

        rule, states = self._rule, [UNDECIDED, *contest.states.values()]
        if UNDECIDED not in states[1:]:
            self._why = "" if states[1:] else "! there are no two rivals with a result: nothing is decided"
            return False
        if contest.is_constant:
            axis, metric = printable(self._repeats), printable(contest.metric)
            same = f"each setting has the same {metric} in all its repeats"
            self._why = f"! {axis} seems to change nothing, as {same}: does train() use run.{axis}?"
            return False
        if rule.max_seconds is not None and seconds >= rule.max_seconds:
            self._why = f"! undecided after max_seconds={rule.max_seconds:g}"
            return False
        undecided = [rival for rival, state in zip(rivals, states, strict=True) if state == UNDECIDED]
        numbers = {self._asked[rival] for rival in undecided}
        number = max(numbers) + (len(numbers) == 1)  # rivals with fewer repeats catch up first
        wider = {rival: min(number, len(self._runs[rival])) for rival in undecided}
        if all(self._asked[rival] == number for rival, number in wider.items()):
            self._why = f"! undecided after {counted(self._most, 'repeat')}"
            return False
        self._asked |= wider
        return True
