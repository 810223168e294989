"""Every function, command, panel, page and HParams name the same setting, or all say that there is none."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
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
from runmanager.cli.app import app
from runmanager.core.experiment import Design, Experiment
from runmanager.core.goal import Goal
from runmanager.core.journal import Journal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.state import read_experiment
from runmanager.errors import InvalidArgumentError
from runmanager.screen.live import best_line
from runmanager.screen.panel import Panel
from tests.report.reading import parse, text_of


def call(*arguments: Any) -> tuple[str, str]:
    """Call `runmanager`; return its output and what it says beside it."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(part) for part in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


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
    return best_line([results[index] for index in order or range(len(results))], Experiment(path).design)


TWO = Design(Goal("accuracy", 1), goals=(Goal("accuracy", 1), Goal("cost", -1)))


def test_a_result_of_the_whole_run_decides_while_the_grid_runs_too(tmp_path):
    runs = write(
        tmp_path / "e",
        [({"lr": 1}, {"loss": 1.0}, Status.COMPLETED, {"final_accuracy": 0.9}),
         ({"lr": 2}, {"loss": 0.5}, Status.COMPLETED, {"final_accuracy": 0.1})],
    )  # fmt: skip

    assert best(runs)["run"].tolist() == [1, 2]
    assert live_line(tmp_path / "e") == "final_accuracy 0.9000 · run 1 (lr=1)"


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
    assert live_line(tmp_path / "e", order).endswith(f" · run {winner['run']} (lr={winner['lr']})")


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
    assert "lr=1 leads: test_accuracy 0.90, the mean of 3 seeds" in panel
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
    assert "lr=0.2 dropout=1 leads: test_accuracy" in panel
    assert "The closest, lr=0.1 dropout=1" in panel
    assert "dropot" not in panel.partition(" lost 2 of 2 seeds (failed)")[0].rpartition(";")[0]


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
        runs.attrs["hyperparameters"] = ["run"]
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
