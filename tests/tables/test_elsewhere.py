"""Tables from elsewhere: whoever names their hyperparameters gets the answers of a table of load_runs."""

import io
import pickle
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from runmanager import (
    RunManager,
    best,
    compare,
    effects,
    export,
    importances,
    load_runs,
    load_table,
    pareto,
    show,
    verdict,
)
from runmanager.answers.ranking import ranking_of
from runmanager.errors import InvalidArgumentError

RUNS = [
    (lr, seed, 0.9 + lr / 5 + (seed * seed * (3 if lr > 0.05 else 2) % 7) / 1000)
    for lr in (0.1, 0.01)
    for seed in range(8)
]
BETTER = "lr=0.1 is better than lr=0.01 by 0.01"
LOST = "this table does not name its hyperparameters"
NAMES = "load_table(runs, hyperparameters=['lr', 'seed'])"


def frame():
    return pd.DataFrame(RUNS, columns=["lr", "seed", "f1"])


def of_csv(path):
    frame().to_csv(path / "mine.csv")
    return pd.read_csv(path / "mine.csv", index_col=0), {}


def of_concat(path):
    parts = [frame()[frame()["lr"] == lr].assign(day=day) for day, lr in enumerate((0.1, 0.01))]
    return pd.concat(parts, keys=["monday", "tuesday"], names=["when"]), {}


def of_wandb(path):
    table = frame().rename(columns={"f1": "val/f1"})
    table.insert(0, "Name", [f"sunny-dog-{row}" for row in table.index])
    table.insert(1, "State", "finished")
    table.insert(2, "Created", "2026-11-25T08:00:00.000Z")
    crashed = pd.DataFrame({"Name": ["x"], "State": ["crashed"], "lr": [0.1], "seed": [9]})
    pd.concat([table, crashed]).to_csv(path / "wandb.csv", index=False)
    return path / "wandb.csv", {"goal": "max:val/f1"}


def of_mlflow(path):
    table = pd.DataFrame({"run_id": [f"{row:032x}" for row in range(16)], "status": "FINISHED"})
    table["start_time"] = pd.Timestamp("2026-11-25", tz="UTC")
    table["metrics.f1"] = frame()["f1"]
    for name in ("lr", "seed"):
        table[f"params.{name}"] = frame()[name].astype(str)  # as mlflow.search_runs() has them
    names = {"hyperparameters": ["params.lr"], "repeats": "params.seed", "goal": "max:metrics.f1"}
    return table, names


def of_optuna(path):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    spaces = {
        "lr": optuna.distributions.FloatDistribution(0.01, 1),
        "seed": optuna.distributions.IntDistribution(0, 9),
    }
    for lr, seed, f1 in RUNS:
        trial = optuna.create_trial(params={"lr": lr, "seed": seed}, distributions=spaces, value=f1)
        study.add_trial(trial)
    pruned = optuna.trial.TrialState.PRUNED
    study.add_trial(optuna.create_trial(params={"lr": 0.1, "seed": 9}, distributions=spaces, state=pruned))
    names = {"hyperparameters": ["params_lr"], "repeats": "params_seed", "goal": "max:value"}
    return study.trials_dataframe(), names


TABLES = {
    each.__name__.removeprefix("of_"): each for each in (of_csv, of_concat, of_wandb, of_mlflow, of_optuna)
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("tool", TABLES)
def test_a_table_from_elsewhere_whose_axes_are_named_gets_every_answer(tmp_path, tool):
    table, names = TABLES[tool](tmp_path)
    names = {"hyperparameters": ["lr"], "repeats": "seed", "goal": "max:f1", **names}
    lr, metric = names["hyperparameters"][0], names["goal"].removeprefix("max:")

    runs = load_table(table, **names)

    said = str(verdict(runs))
    assert said.replace(lr, "lr").startswith(BETTER)
    assert str(verdict(runs, lr)).replace(lr, "lr") == said.replace(lr, "lr")
    assert best(runs)[lr].tolist() == [0.1, 0.01]
    assert effects(runs)["axis"].unique().tolist() == [lr]
    assert compare(runs, lr, metric)["0.1"].notna().sum() == 8
    assert pareto(runs, [f"max:{metric}", f"min:{names['repeats']}"], repeats=())[lr].iloc[0] == 0.1
    assert importances(runs)["axis"].tolist() == [lr]
    assert said.partition(";")[0] in show(runs).caption


@pytest.mark.parametrize("answer", [verdict, effects, importances, lambda runs: compare(runs, "lr")])
def test_a_table_without_names_is_answered_with_the_call_that_gives_them(answer):
    with pytest.raises(InvalidArgumentError) as caught:
        answer(frame().assign(accuracy=frame()["f1"]))

    assert LOST in str(caught.value)
    assert str(caught.value).endswith(f"name them, as {NAMES}")


def test_the_rows_of_a_table_without_names_can_be_sorted():
    assert best(frame(), "max:f1")["f1"].iloc[0] == max(f1 for _, _, f1 in RUNS)


def trained(root, *names):
    for name in names:
        manager = RunManager(name, root=root, display=False, tensorboard=False, goal="max:f1")
        for lr, seed, f1 in RUNS:
            with manager.run({"lr": lr, "seed": seed}):
                for _ in manager.epochs(1):
                    manager.track(f1=f1)
    return [load_runs(root / name) for name in names]


KEEPING = {
    "filter": lambda runs: runs[runs["seed"] < 8],
    "query": lambda runs: runs.query("epochs == 1"),
    "concat of its parts": lambda runs: pd.concat([runs[runs["lr"] > 0.05], runs[runs["lr"] < 0.05]]),
    "merge with its own columns": lambda runs: runs.merge(runs[["run"]], on="run"),
    "groupby, as columns": lambda runs: runs.groupby(["lr", "seed"], as_index=False).first(),
    "columns": lambda runs: runs[["lr", "seed", "f1"]],
    "assign, sort": lambda runs: runs.assign(size=1).sort_values("seed"),
    "pickle": lambda runs: pickle.loads(pickle.dumps(runs)),
}
LOSING = {
    "merge": lambda runs: runs.merge(pd.DataFrame({"run": range(1, 17), "size": 1}), on="run"),
    "concat with others": lambda runs: pd.concat([runs, pd.DataFrame(runs.to_dict("list")).assign(lr=1.0)]),
    "csv of pandas": lambda runs: pd.read_csv(io.StringIO(runs.to_csv(index=False))),
    "records": lambda runs: pd.DataFrame(runs.to_dict("records")),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("root"), "one")[0]


@pytest.mark.parametrize("kind", KEEPING)
def test_goal_and_repeats_survive_where_pandas_lets_them(runs, kind):
    table = KEEPING[kind](runs)

    assert str(verdict(table)) == str(verdict(runs))
    assert len(best(table)) == 2


@pytest.mark.parametrize("kind", LOSING)
def test_what_pandas_drops_is_asked_for_in_one_sentence(runs, kind):
    table = LOSING[kind](runs)

    for answer in (best, show, verdict, effects):
        with pytest.raises(InvalidArgumentError, match=LOST) as caught:
            answer(table)
        assert str(caught.value).endswith(NAMES)
    named = load_table(table, hyperparameters=["lr", "seed"], repeats="seed", goal="max:f1")
    assert best(named)["lr"].iloc[-1] == 0.01


@pytest.mark.parametrize("goal", ["max:kept f1", ["max:kept f1", "min:loss"]])
def test_a_goal_may_be_the_value_of_the_kept_weights_alone(goal):
    table = frame().rename(columns={"f1": "kept f1"}).assign(loss=frame()["f1"])

    runs = load_table(table, hyperparameters=["lr"], repeats="seed", goal=goal)

    assert best(runs)["lr"].iloc[0] == 0.1
    assert [str(each) for each in ranking_of(runs).goals] == ([goal] if isinstance(goal, str) else goal)


def test_hyperparameters_in_the_index_are_asked_back(runs):
    for table in (runs.groupby(["lr", "seed"]).first(), runs.set_index("lr")):
        with pytest.raises(InvalidArgumentError, match=r"'lr' is in the index: give runs.reset_index\(\)"):
            best(table)
        assert str(verdict(table.reset_index())) == str(verdict(runs))
        assert str(verdict(load_table(table))) == str(verdict(runs))
    assert load_table(runs.set_index("lr", drop=False))["lr"].tolist() == runs["lr"].tolist()


@pytest.mark.slow(everywhere=True)
def test_experiments_that_were_concatenated_are_named_again(tmp_path):
    one, two = trained(tmp_path, "one", "two")

    with pytest.raises(InvalidArgumentError, match=LOST):
        best(pd.concat([one, two]))
    table = pd.concat({"one": one, "two": two}, names=["experiment", "row"])
    named = load_table(table, hyperparameters=["lr"], repeats="seed", goal="max:f1")

    assert best(named)[["experiment", "lr"]].to_numpy().tolist()[:2] == [["one", 0.1], ["two", 0.1]]


def test_a_renamed_column_becomes_a_hyperparameter_by_the_call_in_the_message(runs):
    renamed = runs.rename(columns={"lr": "rate"})

    with pytest.raises(InvalidArgumentError) as caught:
        verdict(renamed, "rate")

    assert str(caught.value).endswith(
        "the column becomes one by load_table(runs, hyperparameters=['seed', 'rate'])"
    )
    named = load_table(renamed, hyperparameters=["seed", "rate"])
    assert str(verdict(named, "rate")).startswith("rate=0.1 is better")


def test_names_survive_a_file_of_export(tmp_path):
    runs = load_table(frame(), hyperparameters=["lr"], repeats="seed", goal="max:f1")
    export(runs, tmp_path / "runs.csv")

    assert str(verdict(load_table(tmp_path / "runs.csv"))) == str(verdict(runs))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hyperparameters": ["rate"]}, "these runs have no column 'rate'; they have: lr, seed, f1"),
        ({"hyperparameters": ["lr"], "repeats": "fold"}, "these runs have no column 'fold'"),
        ({"hyperparameters": ["lr"], "goal": "max:f2"}, "these runs have no column 'f2'; did you mean 'f1'"),
    ],
)
def test_names_that_are_no_columns_are_refused(given, message):
    with pytest.raises(InvalidArgumentError, match=message):
        load_table(frame(), **given)


def test_a_status_that_nobody_knows_is_asked_for():
    with pytest.raises(
        InvalidArgumentError, match="the column 'status' has 'ready', which is no status of a run"
    ):
        load_table(frame().assign(status="ready"), hyperparameters=["lr"])


def test_the_table_that_was_given_stays_as_it_was():
    table = frame().assign(State="finished", run=[f"dog-{row}" for row in range(16)])
    before = table.copy()

    runs = load_table(table, hyperparameters=["lr"], repeats="seed", goal="max:f1")

    pd.testing.assert_frame_equal(table, before)
    assert table.attrs == {}
    assert {"status", "run"} <= set(runs)
    assert np.isfinite(best(runs, repeats=())["f1"]).all()


ANSWERS: list[Callable[[pd.DataFrame], object]] = [
    show,
    best,
    verdict,
    effects,
    lambda runs: compare(runs, "lr"),
    lambda runs: pareto(runs, ["max:f1", "min:seed"], repeats=()),
    lambda runs: show(runs, repeats=()),
    lambda runs: show(runs.query("lr < 0.05")),
]


@pytest.mark.parametrize(
    "values", [[f"lr0.1_s{row}" for row in range(16)], [1.5, None] * 8, [None] * 16, ["a", 2, None, 0.5] * 4]
)
def test_columns_that_have_numbers_or_paths_in_our_tables_may_have_anything(values):
    columns = dict.fromkeys(("run", "folder", "run duration", "error"), values)

    runs = load_table(frame().assign(**columns), hyperparameters=["lr"], repeats="seed", goal="max:f1")

    assert {*columns} <= {*runs}
    assert str(verdict(runs)).startswith(BETTER)
    for answer in ANSWERS:
        assert len(str(answer(runs))) > 0


def test_runs_with_names_are_ranked_and_named_by_them():
    runs = frame().assign(run=[f"lr{lr}_s{seed}" for lr, seed, _ in RUNS])
    names = runs.sort_values("f1", ascending=False, kind="stable")["run"].tolist()
    table = load_table(runs, hyperparameters=["run"], goal="max:f1")

    assert best(runs, "max:f1")["run"].tolist() == names
    assert show(table).table["run"].tolist() == names
    assert best(table)["run"].tolist() == names
    assert verdict(table).table["run"].tolist() == names
    ranking = ranking_of(table)
    assert ranking.name(ranking.settings[0]) == f"run {names[0]}"


def test_a_run_column_with_the_name_of_a_setting_is_a_hyperparameter():
    runs = frame().assign(run=["wide" if lr > 0.05 else "narrow" for lr, _, _ in RUNS], epoch=5)

    table = load_table(runs, hyperparameters=["run"], repeats="seed", goal="max:f1")

    assert str(verdict(table)).startswith("run=wide is better than run=narrow by 0.01")
    assert best(table)["run"].tolist() == ["wide", "narrow"]


def test_epochs_with_names_of_runs_are_called_epochs():
    epochs = pd.concat([frame().assign(run=[f"s{row}" for row in range(16)], epoch=epoch) for epoch in (1, 2)])
    table = load_table(epochs, hyperparameters=["lr", "seed"], goal="max:f1")

    with pytest.raises(InvalidArgumentError, match="these rows are epochs, not runs"):
        verdict(table)
    assert str(verdict(table.groupby("run").tail(1))).startswith(BETTER)


def rerun(*attempts):
    """Return a table in which seed 5 of the best setting has these attempts."""
    runs = frame().assign(State="finished").query("lr != 0.1 or seed != 5")
    rows = [(0.1, 5, 0.92 if status == "finished" else np.nan, status) for status in attempts]
    return pd.concat([runs, pd.DataFrame(rows, columns=[*runs])])


@pytest.mark.parametrize(
    ("attempts", "all_repeats", "failed", "repeats"),
    [
        (["crashed", "finished"], 8, 0, "8"),
        (["finished", "preempted"], 8, 0, "8"),
        (["crashed", "failed"], 8, 1, "7 of 8, 1 failed"),
        (["crashed", "running", "crashed"], 8, 0, "7 of 8"),
        (["crashed"], 8, 1, "7 of 8, 1 failed"),
    ],
)
def test_a_repeat_that_was_run_again_is_lost_only_if_no_attempt_has_completed(
    attempts, all_repeats, failed, repeats
):
    table = rerun(*attempts)

    runs = load_table(table, hyperparameters=["lr"], repeats="seed", goal="max:f1")
    ranked = best(runs).iloc[0]

    assert ranked["all repeats"] == all_repeats
    assert ranked.get("failed repeats", 0) == failed
    for decision in (verdict(runs), verdict(runs, "lr")):
        assert ("lost 1 of 8 seeds (failed)" in str(decision)) == bool(failed)
    assert str(show(runs).table["repeats"].iloc[0]) == repeats


def test_without_repeat_axes_each_row_is_a_run():
    runs = load_table(rerun("crashed", "finished"), hyperparameters=["lr"], goal="max:f1")

    assert len(best(runs)) == 17
    assert best(runs)["status"].iloc[-1] == "failed"
