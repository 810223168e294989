"""Random experiments: each surface says what plain Python says of the values that were tracked."""

import itertools
import json
import math
import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from scipy import stats
from torch import nn

from runmanager import (
    GridOutcome,
    InvalidArgumentError,
    RunBuilder,
    best,
    compare,
    effects,
    load_run,
    load_runs,
    pareto,
    run_grid,
    show,
    verdict,
    write_report,
)
from tests.border.events import hparams_of, scalars_of
from tests.border.experiments import QUIET
from tests.border.pages import by_id, parse, text_of
from tests.border.reading import run_folder
from tests.border.screens import command
from tests.nightly import of_night, of_night_but

REPEATS = ("seed", "fold")
EPOCHS = 2
Params = dict[str, Any]


@dataclass
class Case:
    """A random experiment, and what it tracks: parameters, status, and metrics of each epoch."""

    goal: Any
    repeats: Any
    keep: bool
    rows: list[tuple[Params, str, list[dict[str, float]]]] = field(default_factory=list)

    def train(self, run: Any, manager: Any) -> None:
        _, status, epochs = next(row for row in self.rows if row[0] == run._asdict())
        with manager.run(run, nn.Linear(1, 1)):
            for epoch in manager.epochs(EPOCHS, **({"keep": "max:val_accuracy"} if self.keep else {})):
                manager.track_loss(math.nan if status == "diverged" and epoch == EPOCHS else 1.0, 1)
                manager.track(epochs[epoch - 1])
                if epoch == EPOCHS and status in ("failed", "pruned"):
                    raise {"failed": ValueError, "pruned": optuna.TrialPruned}[status]("no")

    # The definition

    @property
    def goals(self) -> list[tuple[str, int]]:
        """The goals: metric, and 1 if larger is better, else -1."""
        if self.goal is not None:
            texts = [self.goal] if isinstance(self.goal, str) else self.goal
            return [(text[4:], 1 if text.startswith("max") else -1) for text in texts]
        has_accuracy = any(not math.isnan(self.value(row, "val_accuracy")) for row in self.rows)
        return [("val_accuracy", 1)] if has_accuracy or self.keep else [("loss", -1)]

    def value(self, row: tuple[Params, str, list[dict[str, float]]], metric: str) -> float:
        """Return the number of a run that counts, NaN if it has none."""
        _, status, epochs = row
        epochs = [{"loss": 1.0, **metrics} for metrics in epochs]
        if status != "completed":
            return math.nan
        if self.keep:
            kept = max(range(len(epochs)), key=lambda epoch: epochs[epoch].get("val_accuracy", -math.inf))
            return epochs[kept].get(metric, math.nan)
        return next((metrics[metric] for metrics in reversed(epochs) if metric in metrics), math.nan)

    @property
    def axes(self) -> list[str]:
        if self.repeats is not None:
            return list(self.repeats)
        values = {name: {params[name] for params, _, _ in self.rows} for name in self.rows[0][0]}
        return [name for name in values if name in REPEATS and len(values[name]) > 1]

    @property
    def settings(self) -> list[list[int]]:
        """The numbers of the runs of each setting, in the order of the table."""
        groups: dict[Any, list[int]] = {}
        for number, (params, _, _) in enumerate(self.rows, 1):
            key = tuple((name, params[name]) for name in params if name not in self.axes)
            groups.setdefault(key if self.axes else number, []).append(number)
        return list(groups.values())

    def numbers(self, setting: Sequence[int], goal: int = 0) -> dict[Any, float]:
        rows = [self.rows[number - 1] for number in setting]
        values = {
            tuple(row[0][name] for name in self.axes): self.value(row, self.goals[goal][0]) for row in rows
        }
        return {repeat: value for repeat, value in values.items() if not math.isnan(value)}

    def mean(self, setting: Sequence[int], goal: int = 0) -> float:
        numbers = self.numbers(setting, goal)
        return sum(numbers.values()) / len(numbers) if numbers else math.nan

    def tier(self, setting: Sequence[int]) -> tuple[bool, bool]:
        """Say whether a setting lacks one of the goals, and whether its only number may be luck."""
        most = max(len(self.numbers(each)) for each in self.settings)
        is_lost = any(self.rows[number - 1][1] in ("failed", "diverged") for number in setting)
        is_single = bool(self.axes) and len(self.numbers(setting)) == 1 and most > (1 if is_lost else 2)
        return any(math.isnan(mean) for mean in self.means(setting)), is_single

    def means(self, setting: Sequence[int]) -> list[float]:
        return [self.mean(setting, goal) for goal in range(len(self.goals))]

    def scores(self, setting: Sequence[int]) -> list[float]:
        """Return the rounded mean of each goal, larger is better."""
        pairs = zip(self.means(setting), self.goals, strict=True)
        return [round(sign * mean, 9) for mean, (_, sign) in pairs if not math.isnan(mean)]

    @property
    def order(self) -> list[list[int]]:
        """The settings that have a number, the best first."""
        rated = [setting for setting in self.settings if self.numbers(setting)]
        return sorted(rated, key=lambda each: (self.tier(each), [-score for score in self.scores(each)]))

    @property
    def front(self) -> list[list[int]]:
        """The settings of the first tier that no other beats in a goal without losing in another."""
        leaders = [setting for setting in self.order if self.tier(setting) == self.tier(self.order[0])]
        scores = [self.scores(setting) for setting in leaders]
        beaten = [
            any(other != mine and all(map(float.__ge__, other, mine)) for other in scores) for mine in scores
        ]
        return [setting for setting, is_beaten in zip(leaders, beaten, strict=True) if not is_beaten]

    def leads(self, one: Sequence[int], other: Sequence[int]) -> list[float]:
        """Return how far a setting is ahead of another in each repeat that both have."""
        if any(self.tier(each)[0] and not self.tier(self.order[0])[0] for each in (one, other)):
            return []
        mine, its = self.numbers(one), self.numbers(other)
        return [self.goals[0][1] * (mine[repeat] - its[repeat]) for repeat in sorted(mine.keys() & its.keys())]

    def label(self, setting: Sequence[int]) -> dict[str, Any]:
        """Return what tells the settings with a number apart."""
        params = [self.rows[each[0] - 1][0] for each in self.order]
        mine = self.rows[setting[0] - 1][0]
        names = [name for name in mine if name not in self.axes and len({each[name] for each in params}) > 1]
        return {name: mine[name] for name in names}


def bayes(values: Sequence[float]) -> float:
    """Return the Bayes factor of differences, with a normal prior of variance 8 on their standardised mean."""
    n, total, squares = len(values), sum(values), sum(value * value for value in values)
    g = 1 + 8 * n
    share = total * total / (n * squares) if squares else 0.0
    return float(g**-0.5 * (1 - (1 - 1 / g) * share) ** (-n / 2))


def evidence(values: Sequence[float]) -> float:
    """Return the capital of bets on the sign of each difference, whose stakes are by the Bayes factor."""
    if not values or max(values) - min(values) <= 1e-12 * max(map(abs, values)):
        return 1.0
    capital = 1.0
    for n in range(1, len(values) + 1):
        before, newest = values[: n - 1], values[n - 1]
        as_it_is, turned = bayes([*before, newest]), bayes([*before, -newest])
        capital *= 2 * as_it_is / (as_it_is + turned)
    return capital


def closed(case: Case, one: Sequence[int], other: Sequence[int]) -> float:
    """Return the evidence for a difference that no grouping of equal settings leaves standing."""
    of_pair = evidence(case.leads(one, other))
    rest = [setting for setting in case.settings if setting not in (one, other)]
    third = [evidence(case.leads(one, each)) + evidence(case.leads(other, each)) for each in rest]
    groups = itertools.chain(*(itertools.combinations(third, size) for size in range(len(rest) + 1)))
    return min(2 * (of_pair + sum(group)) / (len(case.settings) * (len(group) + 1)) for group in groups)


def random_case(dice: random.Random) -> Case:
    """Return a random case: axes, repeats, lost and missing runs, ties, NaN, kept epochs, one goal or two."""
    names = dice.sample(["lr", "width", "seed", "fold"], dice.randint(1, 4))
    sizes = {name: dice.choice([1, 2, 3, 7]) if name == "seed" else dice.randint(1, 3) for name in names}
    grid = RunBuilder.get_runs({name: list(range(1, 1 + size)) for name, size in sizes.items()})
    runs = ([run for run in grid if dice.random() < 0.9] or list(grid))[:45]
    axes = [name for name in names if name in REPEATS or dice.random() < 0.1]
    accuracy = dice.choice(["max:val_accuracy", "max:val_accuracy", "min:val_accuracy"])
    goal = dice.choice([None, accuracy, [accuracy, "min:cost"]])
    case = Case(goal, dice.choice([None, None, (), axes]), goal != "min:val_accuracy" and dice.random() < 0.2)
    is_tied = dice.random() < 0.5
    lost = dice.choice([0.0, 0.2, 0.6])
    for run in runs:
        status = dice.choice(["failed", "diverged", "pruned"]) if dice.random() < lost else "completed"
        drawn = [dice.choice([0.25, 0.5, 0.1 + 0.2, 0.3]) if is_tied else dice.random() for _ in range(EPOCHS)]
        epochs = [{"val_accuracy": value, "cost": float(dice.randint(1, 3))} for value in drawn]
        for name, chance in (("val_accuracy", 0.1), ("cost", 0.1)):
            if dice.random() < chance and not (case.keep and name == "val_accuracy"):
                missing = epochs if dice.random() < 0.5 or case.keep else epochs[1:]  # everywhere, or at last
                for metrics in missing:
                    del metrics[name]
        case.rows.append((run._asdict(), status, epochs))
    if not any(math.isfinite(case.value(row, case.goals[0][0])) for row in case.rows):
        return random_case(dice)
    return case


def numbers_of(row: Any) -> list[int]:
    """Return the runs of a row of `best`, by their numbers."""
    return [int(name.rpartition("/")[2]) for name in row["runs"]] if "runs" in row else [int(row["run"])]


def check(case: Case, root: Path, *, has_events: bool) -> None:
    """Execute a case, and compare every surface with the definition."""
    runs = [RunBuilder.get_runs({name: [value] for name, value in row[0].items()})[0] for row in case.rows]
    options = {**QUIET, "tensorboard": has_events, "goal": case.goal, "repeats": case.repeats}
    outcome = run_grid(runs, case.train, experiment=root.name, root=root.parent, **options)
    table = load_runs(root)
    for index, status in enumerate(table["status"]):
        if status == "pending":  # many failures have broken off the grid
            case.rows[index] = (case.rows[index][0], "pending", [])
        assert status == case.rows[index][1]
    check_tables(case, table, root)
    check_pairs(case, table)
    if case.axes and len(case.settings) > 1:
        check_verdict(case, table)
    check_sentences(case, outcome, root)
    if has_events:
        check_events(case, root)


def check_tables(case: Case, runs: pd.DataFrame, root: Path) -> None:
    order, (metric, _), table = case.order, case.goals[0], best(runs)
    shown = show(runs).table
    assert [numbers_of(row) for _, row in table.iterrows()][: len(order)] == order
    column = next(name for name in map(str, table) if re.fullmatch(rf"(kept )?{metric}( mean)?", name))
    assert table[column][: len(order)].tolist() == pytest.approx([case.mean(each) for each in order])
    assert shown[f"{'kept ' if case.keep else ''}{metric}"].iloc[0] == pytest.approx(case.mean(order[0]))
    assert column in repr(show(table)).partition("not shown")[0]
    rows = json.loads(command("best", root, "--json", "--all").out)
    if len(case.goals) > 1:
        assert [numbers_of(row) for _, row in pareto(runs).iterrows()] == case.front
        assert [numbers_of(row) for row in rows] == case.front
    else:
        assert [numbers_of(row) for row in rows] == order
    if case.axes:
        for setting, (_, row) in zip(order, table.iterrows(), strict=False):
            values = list(case.numbers(setting).values())
            n, of_metric = len(values), column.removesuffix(" mean")
            spread = statistics.stdev(values) if n > 1 else math.nan
            half = stats.t.ppf(0.975, n - 1) * spread / math.sqrt(n) if n > 1 else math.nan
            ends = [row[f"{of_metric} {end}"] for end in ("low", "high")]
            middle = case.mean(setting)
            assert row[f"{of_metric} std"] == pytest.approx(spread, nan_ok=True, abs=1e-12)
            every = [number for each in case.settings for number in case.numbers(each).values()]
            expected = [middle - half, middle + half]
            if of_metric.endswith("accuracy") and min(every) >= 0 and max(every) <= 1:
                expected = [max(expected[0], 0.0), min(expected[1], 1.0)]
            assert ends == pytest.approx(expected, nan_ok=True, abs=1e-12)
        assert set(effects(runs)["axis"]).isdisjoint(case.axes)
        with pytest.raises(InvalidArgumentError, match="this setting has several runs, "):
            load_run(table.iloc[0])


def check_pairs(case: Case, runs: pd.DataFrame) -> None:
    names = [name for name in case.rows[0][0] if len({params[name] for params, _, _ in case.rows}) > 1]
    for axis in names:
        cells: dict[Any, dict[int, float]] = {}
        for row in case.rows:
            value = case.value(row, case.goals[0][0])
            if not math.isnan(value):
                rest = tuple(part for name, part in row[0].items() if name != axis)
                cells.setdefault(rest, {})[row[0][axis]] = value
        values = list(dict.fromkeys(params[axis] for params, _, _ in case.rows))
        counts = {value: sum(value in cell for cell in cells.values()) for value in values}
        first = max(values, key=lambda value: counts[value])
        table = compare(runs, axis)
        for value in values:
            expected = [cell[value] - cell[first] for cell in cells.values() if {first, value} <= {*cell}]
            if value != first and expected:
                column = table[f"{value} vs {first}"].dropna()
                assert sorted(column) == pytest.approx(sorted(expected), abs=1e-12)


def check_verdict(case: Case, runs: pd.DataFrame) -> None:
    decision, order = verdict(runs), case.order
    if decision.outcome == "better":
        assert case.label(order[0]).items() <= decision.better.items()
        assert not decision.low < 0
    for _, row in decision.table.dropna(subset="difference").iterrows():
        (setting,) = [each for each in order if all(row[axis] == v for axis, v in case.label(each).items())]
        leads = case.leads(order[0], setting)
        assert row["difference"] == pytest.approx(sum(leads) / len(leads), abs=1e-12)
        if len(case.settings) <= 9:  # as many groupings as can be tried
            assert row["evidence"] == pytest.approx(closed(case, order[0], setting))


def check_sentences(case: Case, outcome: GridOutcome, root: Path) -> None:
    """Compare the screens: they name one setting by one number, and write one verdict."""
    winner, runs = case.order[0], load_runs(root)
    label = " ".join(f"{name}={value}" for name, value in case.label(winner).items())
    name = label if case.axes else f"run {winner[0]}"
    page = parse(write_report(root, root / "page.html"))
    surfaces = [
        " ".join(str(outcome.panel).split()),
        " ".join(text_of(parse(outcome._repr_html_())).split()),
        text_of(page),
        command("list", root).err,
    ]
    if case.axes and len(case.order) > 1:
        first = str(verdict(runs)).partition("; ")[0].replace("undecided", "Undecided")
        of_verdict = [
            *surfaces,
            show(runs).caption,
            command("decide", root).words.replace("undecided", "Undecided"),
        ]
        assert [text for text in of_verdict if first not in text] == []
    assumed = case.axes if case.repeats is None else []
    numbers = set()
    for text in surfaces:
        if len(case.order) > 1 and "Each has" not in text:
            assert name in text.replace("Run", "run")
        assert ("Repeats by name: " in text) == bool(assumed)
        numbers |= {*re.findall(rf"{case.goals[0][0]}:? (\d[\d.]*\d|\d)\b", text)[:1]}
    (number,) = numbers
    digits = len(number.partition(".")[2])
    assert float(number) == pytest.approx(case.mean(winner), abs=0.51 * 10**-digits)
    rows = [row for row in by_id(page, "runs").iter("tr") if row.find("td") is not None]
    assert int(re.findall(r"\d+", text_of(next(iter(rows[0]))))[0]) in winner


def check_events(case: Case, root: Path) -> None:
    """Compare what HParams has of each run: hyperparameters, the last and the best value of its goal."""
    metric, sign = case.goals[0]
    axes = {name for name in case.rows[0][0] if name not in case.axes}
    varying = {name for name in axes if len({params[name] for params, *_ in case.rows}) > 1}
    for number, (params, status, epochs) in enumerate(case.rows, 1):
        folder = run_folder(root, number)
        values = [metrics[metric] for metrics in epochs if metric in metrics]
        assert hparams_of(folder) == {name: params[name] for name in varying or axes}
        if status == "completed" and case.goal and values:
            scalars = scalars_of(folder)
            goal = f"{'max' if sign > 0 else 'min'}:{metric}"
            assert scalars[f"Goal/last {goal}"][-1][1] == pytest.approx(values[-1])
            best = sign * max(sign * value for value in values)
            assert scalars[f"Run/best {goal}"][-1][1] == pytest.approx(best)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("batch", of_night_but(range(10), [3]))
def test_every_surface_says_what_was_tracked(tmp_path, batch):
    dice = random.Random(batch)  # noqa: S311
    for number in range(of_night(20, by_day=6)):
        case = random_case(dice)

        check(case, tmp_path / f"e{number}", has_events=number % 5 == 0)
