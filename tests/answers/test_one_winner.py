"""Every function, command, panel, page and HParams name the same setting, or all say that there is none."""

import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from runmanager import (
    best,
    export,
    load_run,
    load_runs,
    load_table,
    pareto,
    run_grid,
    show,
    verdict,
    write_report,
)  # fmt: skip
from runmanager.answers.conclusion import conclude
from runmanager.answers.differences import diff
from runmanager.answers.effects import effects
from runmanager.answers.ranking import ranking_of
from runmanager.answers.usual_goals import assumption
from runmanager.checks.check import settings_of
from runmanager.cli.app import app
from runmanager.cli.listing import overview
from runmanager.core.experiment import Design, Experiment, varying
from runmanager.core.goal import Goal
from runmanager.core.grid import RunBuilder
from runmanager.core.journal import Journal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.run import make_run
from runmanager.core.state import read_experiment
from runmanager.errors import InvalidArgumentError
from runmanager.screen.best import BestSoFar
from runmanager.screen.panel import Panel
from tests.nightly import of_night_but
from tests.report.reading import by_id, parse, text_of

NAMED = ("seed", "fold", "split", "trial", "repeat")
ENDS = [Status.COMPLETED] * 7 + [
    Status.FAILED, Status.DIVERGED, Status.KILLED, Status.PRUNED, Status.INTERRUPTED, Status.PENDING,
]  # fmt: skip


@dataclass
class Case:
    """An experiment on disk, and what its journals say in plain Python."""

    path: Path
    design: Design
    rows: list[tuple[dict[str, Any], Status, dict[str, float]]] = field(default_factory=list)

    @property
    def goals(self) -> Sequence[Goal]:
        rows = [row for row in self.rows if row[1] is Status.COMPLETED] or self.rows
        has_accuracy = any(math.isfinite(metrics.get("accuracy", math.nan)) for _, _, metrics in rows)
        return self.design.all_goals or [Goal("accuracy", 1) if has_accuracy else Goal("loss", -1)]

    @property
    def repeats(self) -> tuple[str, ...]:
        names = [name for name in varying([params for params, _, _ in self.rows]) if name in NAMED]
        return tuple(names) if self.design.repeats is None else self.design.repeats

    @property
    def assumption(self) -> str:
        return assumption(self.repeats) if self.design.repeats is None else ""

    def without_repeats(self, params: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in params.items() if name not in self.repeats}

    def mean(self, runs: list[int]) -> float:
        """Return the mean of a setting, by the numbers of its runs."""
        numbers = next(numbers[0] for its_runs, numbers in self.settings() if its_runs == runs)
        return sum(numbers) / len(numbers)

    def settings(self) -> list[tuple[list[int], list[list[float]]]]:
        """Return the runs of each setting, and their numbers of each goal."""
        groups: dict[Any, list[int]] = {}
        for number, (params, _, _) in enumerate(self.rows, 1):
            key = tuple(self.without_repeats(params).items())
            groups.setdefault(key if self.repeats else number, []).append(number)
        return [(runs, [self._numbers(runs, goal) for goal in self.goals]) for runs in groups.values()]

    def _numbers(self, runs: Sequence[int], goal: Goal) -> list[float]:
        rows = [self.rows[number - 1] for number in runs]
        values = [
            metrics.get(goal.metric, math.nan) for _, status, metrics in rows if status is Status.COMPLETED
        ]
        return [value for value in values if math.isfinite(value)]

    def order(self) -> list[list[int]]:
        """Return the runs of each setting that has a number, the best first: by definition, not by the code."""

        def mean(numbers: Sequence[float]) -> float:
            return round(sum(numbers) / len(numbers), 9) if numbers else math.nan

        rated = [(runs, numbers) for runs, numbers in self.settings() if numbers[0]]
        most = max((len(numbers[0]) for _, numbers in rated), default=0)

        def key(entry: tuple[list[int], list[list[float]]]) -> Any:
            runs, numbers = entry
            scores = [goal.sign * mean(each) for goal, each in zip(self.goals, numbers, strict=True)]
            has_lost = any(self.rows[number - 1][1].is_lost for number in runs)
            is_single = bool(self.repeats) and len(numbers[0]) == 1 and (most > 2 or (most == 2 and has_lost))
            return any(map(math.isnan, scores)), is_single, [-s for s in scores if not math.isnan(s)], runs[0]

        return [runs for runs, _ in sorted(rated, key=key)]

    def label(self, runs: Sequence[int]) -> str:
        """Return a setting as sentences name it: by what varies between those with a number."""
        params = [self.rows[each[0] - 1][0] for each in self.order()]
        names = varying([self.without_repeats(each) for each in params])
        mine = self.rows[runs[0] - 1][0]
        return " ".join(f"{name}={mine[name]}" for name in names)


def make(path: Path, dice: random.Random) -> Case:
    """Write a random experiment: axes, repeats, lost and missing runs, ties, NaN, one goal or two."""
    names = dice.sample(["lr", "width", "seed", "fold"], dice.randint(1, 4))
    grid = RunBuilder.get_runs({name: list(range(1, 1 + dice.randint(1, 3))) for name in names})
    kept = [run for run in grid if dice.random() < 0.85] or grid
    goals = (Goal("accuracy", dice.choice([1, 1, -1])), Goal("cost", -1))
    given = dice.choice([None, None, (), tuple(name for name in names if dice.random() < 0.5)])
    design = dice.choice(
        [Design(None, given), Design(goals[0], given), Design(goals[0], given, goals=goals)],
    )
    case = Case(path, design)
    folders = Experiment(path).plan([run._asdict() for run in kept], {}, design)
    for folder in folders:
        status = dice.choice(ENDS)
        metrics = {"accuracy": dice.choice([0.25, 0.5, 0.5, 0.1 + 0.2, 0.3, 0.75, math.nan])}
        metrics |= {"cost": float(dice.randint(1, 3))} if dice.random() < 0.9 else {}
        metrics |= {"loss": 1.0, "epoch duration": 1.0, "run duration": 1.0}
        if status is Status.PENDING:
            metrics = {}
        else:
            folder.path.mkdir()
            journal = Journal(folder.path, 1, {"after": 0})
            journal.epoch(EpochRecord(1, metrics))
            journal.end(Outcome(status, "" if status is Status.COMPLETED else f"{status}: why", 1))
            journal.close()
        case.rows.append((dict(folder.params), status, metrics))
    return case


def call(*arguments: Any) -> tuple[str, str]:
    """Call `runmanager`; return its output and what it says beside it."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(part) for part in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def numbers_of(row: Any) -> list[int]:
    """Return the runs of a row of `best`, by their numbers."""
    return [int(name.rpartition("/")[2]) for name in row["runs"]] if "runs" in row else [int(row["run"])]


def check(case: Case) -> None:
    """Compare every surface with what the journals say."""
    runs = load_runs(case.path)
    if not any(metrics for _, _, metrics in case.rows) and not case.design.goal:
        assert conclude(runs, case.path).best.text == "No run has completed"
        with pytest.raises(InvalidArgumentError, match="no run has an accuracy or a loss"):
            best(runs)
        return
    check_tables(case, runs)
    check_sentences(case, runs)
    if case.order():
        check_numbers(case, runs)


def check_tables(case: Case, runs: Any) -> None:
    """Compare what `best`, `show`, `pareto` and the command line list, and what they say was assumed."""
    order, table = case.order(), best(runs)
    output, message = call("best", case.path, "--json", "--all")
    rows = json.loads(output)
    assert table.sentence.endswith(case.assumption)
    assert [numbers_of(row) for _, row in table.iterrows()][: len(order)] == order
    assert case.assumption in message.replace("\n", " ")
    assert case.assumption in repr(show(runs)).replace("\n", " ")
    if len(ranking_of(runs).goals) > 1:
        front = [numbers_of(row) for _, row in pareto(runs).iterrows()]
        assert [numbers_of(row) for row in rows] == front
        assert front[:1] == order[:1]
    else:
        assert [numbers_of(row) for row in rows] == order


def check_sentences(case: Case, runs: Any) -> None:
    """Compare the live line, the panel, the page and the list of runs."""
    order, results = case.order(), read_experiment(case.path)
    live = BestSoFar(case.design, varying([params for params, _, _ in case.rows]))
    for result in results:
        live.add(result)
    conclusion = conclude(runs, case.path)
    words = " ".join([conclusion.best.text, *conclusion.best.details])
    if not order:
        assert (str(live), conclusion.table) == ("", None)
        assert "No " in words
        return
    winner, label = order[0], case.label(order[0])
    name = label if case.repeats else f"run {winner[0]}"
    is_named = len(order) > 1
    assert str(live).startswith(f"{case.goals[0].metric} {float(f'{case.mean(winner):.4g}'):g}")
    panel = " ".join(str(Panel(conclusion)).split())
    assert (name in words.replace("Run", "run")) or not is_named
    assert (name in panel.replace("Run", "run")) or not is_named
    assert case.assumption in words
    if conclusion.table:
        heading, first, *_ = (re.split(r"  +", line.strip()) for line in conclusion.table.lines())
        cells = dict(zip(heading, first, strict=False))
        assert case.repeats or cells["run"] == str(winner[0])
        assert all(cells[axis] == value for axis, value in re.findall(r"(\w+)=([\w.]+)", label))
    assert case.assumption in call("list", case.path)[1].replace("\n", " ")
    assert overview(case.path, results)[0]["best"] == pytest.approx(case.mean(winner))
    page = parse(write_report(case.path, case.path / "page.html"))
    text = text_of(page)
    assert (name in text.replace("Run", "run")) or not is_named
    assert case.assumption in text
    rows = [row for row in by_id(page, "runs").iter("tr") if row.find("td") is not None]
    assert int(re.findall(r"\d+", text_of(next(iter(rows[0]))))[0]) in winner


def check_numbers(case: Case, runs: Any) -> None:
    """Compare `verdict`, `best`, `load_run`, `effects`, `importances`, and the settings of a check."""
    order, decision = case.order(), verdict(runs)
    winner, label = order[0], case.label(order[0])
    assert decision.assumptions.endswith(case.assumption)
    tried = settings_of([make_run(tuple(params), params.values()) for params, _, _ in case.rows], case.repeats)
    assert len(tried) == len({tuple(case.without_repeats(params).items()) for params, _, _ in case.rows})
    if not case.repeats:
        return
    if len(case.settings()) > 1:
        better = {axis: str(value) for axis, value in decision.better.items() if f"{axis}=" in label}
        assert better == dict(re.findall(r"(\w+)=([\w.]+)", label))
    averages = best(runs)
    (row,) = [row for _, row in averages.iterrows() if numbers_of(row) == winner]
    assert row[f"{case.goals[0].metric} mean"] == pytest.approx(case.mean(winner))
    assert set(effects(runs)["axis"]).isdisjoint(case.repeats)
    with pytest.raises(InvalidArgumentError, match=f"this setting has {len(winner)} runs?, "):
        load_run(best(runs).iloc[0])
    assert load_run(best(runs).iloc[0]["runs"][0]).number == winner[0]


def test_six_runs_have_one_winner(tmp_path):
    """`best` once named lr=0.1, for its luckiest fold; the panel, the page and `verdict` named lr=0.01."""
    rows = [(lr, fold) for lr in (0.1, 0.01) for fold in range(3)]
    values = dict(zip(rows, [0.95, 0.70, 0.70, 0.90, 0.90, 0.90], strict=True))
    case = Case(tmp_path / "e", Design())
    for folder in Experiment(case.path).plan([{"lr": lr, "fold": fold} for lr, fold in rows], {}):
        folder.path.mkdir()
        metrics = {"accuracy": values[folder.params["lr"], folder.params["fold"]]}
        case.rows.append((dict(folder.params), Status.COMPLETED, metrics))
        journal = Journal(folder.path, 1, {"after": 0})
        journal.epoch(EpochRecord(1, {**metrics, "epoch duration": 1.0, "run duration": 1.0}))
        journal.end(Outcome(Status.COMPLETED, "", 1))
        journal.close()

    check(case)

    runs = load_runs(case.path)
    assert best(runs).iloc[0]["lr"] == 0.01
    assert verdict(runs).better == {"lr": 0.01}
    assert best(runs)["accuracy mean"].tolist() == pytest.approx([0.9, 2.35 / 3])
    assert best(runs, repeats=()).iloc[0]["run"] == 1
    assert "By its name, fold only repeats a setting" in call("decide", case.path)[1]


def write(path: Path, rows: Sequence[Any], design: Design = Design()) -> pd.DataFrame:  # noqa: B008 - frozen
    """Write runs: parameters, metrics, and maybe a status, a summary, and what the journal begins with."""
    folders = Experiment(path).plan([params for params, *_ in rows], {}, design)
    for folder, (_, metrics, *rest) in zip(folders, rows, strict=True):
        further: list[Any] = [*rest, *[Status.COMPLETED, {}, {}][len(rest) :]]
        status, summary, start = further
        folder.path.mkdir()
        journal = Journal(folder.path, 1, {"after": 0, **start})
        if metrics:
            journal.epoch(EpochRecord(1, {**metrics, "epoch duration": 1.0, "run duration": 1.0}))
        journal.end(Outcome(status, "" if status is Status.COMPLETED else "why", 1), summary)
        journal.close()
    return load_runs(path)


def live_line(path, order=()):
    results = read_experiment(path)
    live = BestSoFar(Experiment(path).design, varying([each.folder.params for each in results]))
    for index in order or range(len(results)):
        live.add(results[index])
    return str(live)


TWO = Design(Goal("accuracy", 1), goals=(Goal("accuracy", 1), Goal("cost", -1)))


def test_a_result_of_the_whole_run_decides_while_the_grid_runs_too(tmp_path):
    runs = write(
        tmp_path / "e",
        [({"lr": 1}, {"loss": 1.0}, Status.COMPLETED, {"final_accuracy": 0.9}),
         ({"lr": 2}, {"loss": 0.5}, Status.COMPLETED, {"final_accuracy": 0.1})],
    )  # fmt: skip

    assert best(runs)["run"].tolist() == [1, 2]
    assert live_line(tmp_path / "e") == "final_accuracy 0.9 · run 1 · lr=1"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_in_whichever_order_runs_end_the_metric_of_the_table_decides(tmp_path, order):
    keep = {"keep": "max:f1"}
    runs = write(
        tmp_path / "e",
        [({"lr": 1}, {"accuracy": 0.5, "b_accuracy": 0.9}, Status.FAILED, {}, keep),
         ({"lr": 2}, {"accuracy": 0.9, "a_accuracy": 0.1, "b_accuracy": 0.7}, Status.COMPLETED, {}, keep),
         ({"lr": 3}, {"accuracy": 0.1, "a_accuracy": 0.5, "b_accuracy": 0.2}, Status.COMPLETED, {}, keep)],
    )  # fmt: skip

    winner = best(runs).iloc[0]
    assert live_line(tmp_path / "e", order).endswith(f" · run {winner['run']} · lr={winner['lr']}")


def test_means_that_differ_by_rounding_share_the_front(tmp_path):
    values = [(0.3, 1.0), (0.1 + 0.2, 1.0), (0.1, 5.0)]
    rows = [({"lr": n}, {"accuracy": value, "cost": cost}) for n, (value, cost) in enumerate(values)]
    runs = write(tmp_path / "e", rows, TWO)

    assert best(runs)["run"].tolist() == [1, 2, 3]
    assert pareto(runs)["run"].tolist() == [1, 2]
    assert ranking_of(runs).num_ties == 1


def test_what_the_second_goal_decides_is_no_tie(tmp_path):
    rows = [({"lr": lr}, {"accuracy": 0.3, "cost": cost}) for lr, cost in ((0.1, 2.0), (0.2, 1.0))]
    runs = write(tmp_path / "e", rows, TWO)

    page = text_of(parse(write_report(tmp_path / "e", tmp_path / "page.html")))
    panel = " ".join(str(Panel(conclude(runs, tmp_path / "e"))).split())
    assert "Run 2 (lr=0.2) is best" in page
    assert "accuracy is the first of 2 goals" in panel


def test_a_table_that_was_exported_has_all_goals_again(tmp_path):
    rows = [({"lr": lr}, {"accuracy": 0.3, "cost": cost}) for lr, cost in ((0.1, 2.0), (0.2, 1.0))]
    export(write(tmp_path / "e", rows, replace(TWO, note="why")), tmp_path / "runs.csv")

    runs = load_table(tmp_path / "runs.csv")

    assert best(runs)["run"].tolist() == [2, 1]
    assert pareto(runs)["run"].tolist() == [2]
    assert "note: why" in repr(show(runs))


def test_only_completed_runs_count_in_every_column_of_the_panel(tmp_path):
    rows: list[Any] = [
        ({"lr": lr, "seed": seed}, {"accuracy": lr, "cost": 2.0, "loss": 0.5})
        for lr in (1, 2)
        for seed in (0, 1)
    ]
    lost = {"accuracy": 0.0, "cost": 1000.0, "loss": 9.0}
    rows += [({"lr": 1, "seed": 2}, lost, Status.DIVERGED), ({"lr": 2, "seed": 2}, lost, Status.PRUNED)]
    runs = write(tmp_path / "e", rows, TWO)

    table = conclude(runs, tmp_path / "e").table
    assert table is not None
    heading, *lines = (re.split(r"  +", line.strip()) for line in table.lines())
    assert [dict(zip(heading, line, strict=False))["cost"] for line in lines] == ["2", "2"]
    assert "9" not in " ".join(map(str, lines))


@pytest.mark.parametrize("seeds", [(), (0, 1)])
def test_a_setting_that_lacks_a_goal_is_below_and_every_surface_says_so(tmp_path, seeds):
    metrics = [{"accuracy": 0.9}, {"accuracy": 0.5, "cost": 1.0}, {"accuracy": 0.4, "cost": 5.0}]
    rows = [
        ({"lr": lr, **({"seed": seed} if seeds else {})}, values)
        for lr, values in enumerate(metrics, 1)
        for seed in seeds or (0,)
    ]
    runs = write(tmp_path / "e", rows, TWO)

    conclusion = conclude(runs, tmp_path / "e")
    said = " ".join([conclusion.best.text, *conclusion.best.details])
    assert "has 0.9, but no cost: it ranks below." in said
    page = text_of(parse(write_report(tmp_path / "e", tmp_path / "page.html")))
    assert "has 0.9, but no cost: it ranks below." in page
    assert ("no cost: ranks below" in page) == bool(seeds)
    decision = verdict(runs)
    assert math.isnan(decision.difference) or decision.difference >= 0
    if seeds:
        assert decision.better == {"lr": 2}
        assert "lr=1 is ahead" not in said


def test_an_axis_called_as_a_computed_column_keeps_its_values(tmp_path):
    rows = [({"runs": n, "seed": seed}, {"accuracy": n / 10}) for n in (1, 2) for seed in (0, 1)]

    table = best(write(tmp_path / "e", rows))

    assert table["runs (hyperparameter)"].tolist() == [2, 1]
    assert load_run(table["runs"].iloc[0][0]).number == 3


def test_several_experiments_are_one_axis_of_effects(tmp_path):
    for name in "ab":
        rows = [({"lr": lr, "seed": seed}, {"accuracy": lr}) for lr in (0.1, 0.2) for seed in (0, 1)]
        write(tmp_path / name, rows)

    table = effects(load_runs(tmp_path))

    assert table["axis"].tolist() == ["lr", "lr", "experiment", "experiment"]


def test_sums_that_round_to_nothing_are_a_tie(tmp_path):
    values = {1: (0.1, 0.2, -0.3), 2: (0.0, 0.0, 0.0)}
    rows = [
        ({"lr": lr, "seed": seed}, {"reward": value})
        for lr, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]

    assert ranking_of(write(tmp_path / "e", rows, Design(Goal("reward", 1)))).num_ties == 1


@pytest.mark.slow(everywhere=True)
def test_a_grid_that_adds_seeds_ends_with_the_ranking_of_all(tmp_path):
    values = {1: (0.9, 0.9, 0.9), 2: (0.5, 0.5, 0.95)}

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(test_accuracy=values[run.lr][run.seed])

    for seeds in ([0, 1], [2]):
        grid = {"lr": [1, 2], "seed": seeds}
        outcome = run_grid(grid, train, experiment="e", root=tmp_path, executor="inline", display=False)

    panel = " ".join(str(outcome.panel).split())
    assert best(load_runs(tmp_path)).iloc[0]["lr"] == 1
    assert "lr=1 has the highest test_accuracy: 0.90, the mean of 3 seeds" in panel
    assert "The ranking has 6 completed runs of the experiment; this grid has 2." in panel


def test_an_axis_that_only_failed_runs_have_names_no_setting(tmp_path):
    def train(run, manager):
        rate = getattr(run, "dropout")  # noqa: B009 - a plain attribute would be refused
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(test_accuracy=run.lr * rate)

    for name in ("dropot", "dropout"):
        options = {"experiment": "e", "root": tmp_path, "executor": "inline", "display": False}
        grid = {"lr": [0.1, 0.2], name: [0.5, 1.0], "seed": [0, 1]}
        outcome = run_grid(grid, train, **options)

    panel = " ".join(str(outcome.panel).split())
    assert "lr=0.2 dropout=1 has the highest test_accuracy" in panel
    assert "The closest, lr=0.1 dropout=1" in panel
    assert "dropot" not in panel.partition(" lost both seeds (failed)")[0].rpartition(";")[0]


def test_only_runs_that_completed_are_said_to_be_ranked(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(test_accuracy=1 / run.lr)

    panels = []
    for lrs in ([0], [0, 2], [2, 4]):
        options = {"experiment": "e", "root": tmp_path, "executor": "inline", "display": False}
        panels.append(" ".join(str(run_grid({"lr": lrs}, train, **options).panel).split()))

    assert ["The ranking has" in panel for panel in panels] == [False, False, True]
    assert "The ranking has 2 completed runs of the experiment; this grid has 2." in panels[2]


def test_columns_that_hold_no_numbers_are_refused_by_default_too():
    for values in ([True, False], [0.5, pd.NA], ["0.5", "0.6"]):
        runs = pd.DataFrame({"run": [1, 2], "accuracy": pd.Series(values, dtype=object)})
        for function in (best, verdict, effects):
            with pytest.raises(InvalidArgumentError, match=r"'accuracy' does not hold numbers: .* as 'loss'"):
                function(runs)


def test_settings_without_a_number_are_counted_by_the_command(tmp_path):
    write(tmp_path / "e", [({"lr": 1}, {"accuracy": math.nan})], Design(Goal("accuracy", 1)))

    assert "has a number for accuracy" in call("best", tmp_path / "e")[1]


def test_two_experiments_are_compared_by_all_their_goals(tmp_path):
    for name in "ab":
        accuracy = 0.8 if name == "a" else 0.7
        other = ({"lr": 2}, {"accuracy": accuracy, "cost": 1.0})
        write(tmp_path / name, [({"lr": 1}, {"accuracy": 0.9}), other], TWO)

    rows = diff(tmp_path / "a", tmp_path / "b")

    (row,) = [row for row in rows if "leading setting" in str(row)]
    assert "0.8" in str(row)
    assert "0.7" in str(row)
    assert "0.9" not in str(row)


def test_an_axis_of_one_value_is_not_offered_as_a_repeat(tmp_path):
    rows = [({"lr": lr, "seed": 0}, {"accuracy": lr / 10}) for lr in (1, 2)]

    sentence = verdict(write(tmp_path / "e", rows), repeats=()).sentence

    assert sentence.endswith('repeat them, as with the axis "seed": range(6) and repeats="seed"')


def test_the_list_of_experiments_says_what_it_has_assumed(tmp_path):
    for name in "ab":
        write(tmp_path / name, [({"lr": 1, "seed": seed}, {"accuracy": 0.5}) for seed in (0, 1)])

    assert call("list", tmp_path)[1].count("By its name, seed only repeats a setting") == 1


def test_the_list_of_runs_names_the_experiment_of_the_best_one(tmp_path):
    for name, accuracy in (("a", 0.2), ("b", 0.4)):
        write(tmp_path / name, [({"lr": lr}, {"accuracy": accuracy / lr}) for lr in (1, 2)])

    sentence = "Run 1 (experiment=b lr=1) is best: accuracy 0.4"
    assert sentence in call("list", tmp_path, "--where", "lr<9")[1].replace("\n", " ")


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize("batch", of_night_but(range(10), [0]))
def test_every_surface_names_the_same_setting(tmp_path, batch):
    dice = random.Random(batch)  # noqa: S311
    for number in range(20):
        case = make(tmp_path / f"e{number}", dice)

        check(case)
