"""Tables as files and from elsewhere, the rows that `--where` chooses, the causes of failures, and `show`."""

import ast
import csv
import itertools
import json
import math
import pickle
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runmanager import (
    GridError,
    InvalidArgumentError,
    RunManager,
    StorageError,
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
    write_report,
)
from tests.border.disk import small_disk
from tests.border.experiments import execute
from tests.border.pages import parse, text_of
from tests.border.reading import journals, lines, run_folders, write
from tests.border.screens import command, terminal

NEEDS_PYARROW = pytest.mark.skipif(find_spec("pyarrow") is None, reason="Parquet needs pyarrow")
FORMATS = [".csv", ".json", pytest.param(".parquet", marks=NEEDS_PYARROW)]
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\0")

# Files

TRICKY = [
    0.1, 1, True, "001", "1", "1e5", "-1", "nan", "None", "null", "True", "", " ", "'", "''=1", None, math.inf,
    (3, 3), [1, "a"], {"a": (1,)}, 2**70, -0.0, 1e300, torch.device("cpu"), torch.float16, "[1]", '"a"',
    '{"$tuple": []}', "=1+1", "+1", "-x", "@SUM(A1)", "\t=1", "\r=1", "\0", "a\rb", "a\r\nb", "a,b", 'a"b',
    "a\nb", "ö", "\ud800", "nan ",
]  # fmt: skip
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None))
    | st.sampled_from(TRICKY) | st.just(pd.NA)
    | st.recursive(st.integers() | st.text(), lambda inner: st.tuples(inner) | st.lists(inner, max_size=2))
)  # fmt: skip
COLUMNS = st.one_of(
    *(st.lists(kind, min_size=3, max_size=3) for kind in (VALUES, st.integers(), st.floats(), st.booleans()))
)


def frame_of(columns):
    return pd.DataFrame(
        {
            name: pd.Series(values, dtype=None if len({*map(type, values)}) == 1 else object)
            for name, values in columns.items()
        }
    )


@pytest.mark.parametrize("suffix", FORMATS)
@given(
    columns=st.dictionaries(st.text(min_size=1, max_size=3) | st.just("=lr"), COLUMNS, min_size=1, max_size=3)
)
def test_every_value_comes_back_from_a_file(tmp_path_factory, suffix, columns):
    path = tmp_path_factory.getbasetemp() / f"table{suffix}"
    table = frame_of(columns)
    export(table, path)
    once = load_table(path)

    export(once, path)
    again = load_table(path)

    assert [*once] == [*again] == [*table]
    for name in table:
        pairs = zip(once[name].tolist(), table[name].tolist(), again[name].tolist(), strict=True)
        assert [each for each in pairs if not is_same(*each[:2]) or repr(each[0]) != repr(each[2])] == []
    if suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        texts = [*header, *(cell for row in rows for cell in row if not is_number(cell))]
        assert not [text for text in texts if text.startswith(FORMULA)]


def is_same(one, other):
    """Say whether a value came back: a missing one may be any of those that pandas has."""
    missing = [each is None or each is pd.NA or repr(each) == "nan" for each in (one, other)]
    return all(missing) or (not any(missing) and (repr(one) == repr(other) or one == other))


def is_number(text):
    with suppress(ValueError):
        return float(text) is not None
    return False


def test_a_csv_file_is_what_a_spreadsheet_and_pandas_read(tmp_path):
    table = {"run": [1, 2], "loss": [0.5, math.nan], "net": ["=a", "b"], "size": [(3, 3), pd.NA], "error": ""}

    export(load_table(pd.DataFrame(table), hyperparameters=["net", "size"]), tmp_path / "runs.csv")

    line = (tmp_path / "runs.csv").read_text(encoding="utf-8").splitlines()[1]
    assert line.startswith('1,0.5,\'=a,"{""$tuple"": [3, 3]}",,')
    columns = pd.read_csv(tmp_path / "runs.csv")
    assert columns["loss"].fillna(-1).tolist() == [0.5, -1]
    assert columns["net"].tolist() == ["'=a", "b"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_names_of_columns_and_what_decides_come_back_too(tmp_path, suffix):
    path = tmp_path / "new folder" / f"runs{suffix}"
    for number in (1, 2):
        params = {"epochs": number, "status": "odd", "n": number, "lr": 0.1}
        with RunManager("e", tmp_path, tensorboard=False, display=False, goal="min:kl").run(params) as run:
            for _ in run.epochs(1):
                run.track(kl=3.0 - number)
    runs = load_runs(tmp_path / "e")
    export(runs, path)
    some = runs[runs["n"] > 1]

    assert "epochs (hyperparameter)" in runs
    assert load_table(path).equals(runs)
    assert load_table(path).attrs == {name: value for name, value in runs.attrs.items() if value}
    assert best(load_table(path))["n"].tolist() == [2, 1]
    export(some, path)
    assert load_table(path)["n"].tolist() == [2]
    export(pd.DataFrame({64: [0.5, 1.0]}), path)  # as of a pivot table
    assert load_table(path)["64"].tolist() == [0.5, 1.0]


def test_whole_numbers_among_other_numbers_are_decimal_and_nan_is_a_number(tmp_path):
    (tmp_path / "runs.csv").write_text("lr,seed,top5,f1\n0.1,1,1,nan\n0.2,2,,NaN\n0.3,3,2,\n0.4,4,2,1\n")

    table = load_table(tmp_path / "runs.csv", ["lr", "seed"], goal="max:f1")

    assert [str(kind) for kind in table.dtypes] == ["float64", "int64", "float64", "float64"]
    assert best(table)["lr"].tolist()[0] == 0.4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""), ("a.csv", b"a\n\xff\n"), ("a.csv", b"a\n1,2,3\n1\n"), ("a.json", b""),
        ("a.json", b"{}"), ("a.json", b"[1]"),
        ("a.json", b'{"hyperparameters": [], "columns": ["a"], "rows": [{"a": {"b": 1}}]}'),
        pytest.param("a.parquet", b"PAR1", marks=NEEDS_PYARROW),
    ],
)  # fmt: skip
def test_files_that_hold_no_table_and_other_formats_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(GridError, match=f"{name}' holds no table"):
        load_table(tmp_path / name)
    for call in (lambda path: export(pd.DataFrame(), path), load_table):
        with pytest.raises(GridError, match=r"must end in .csv, .json, .parquet"):
            call(tmp_path / name[0])


def test_an_export_for_which_there_is_no_space_keeps_the_file_before(tmp_path):
    path = tmp_path / "runs.csv"
    export(pd.DataFrame({"run": [1]}), path)
    before = path.read_bytes()

    with small_disk(100), pytest.raises(StorageError):
        export(pd.DataFrame({"run": range(1000)}), path)

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_tables_of_a_grid_are_strict_json_and_csv(tmp_path):
    of = {1: {"a": torch.device("cpu")}}
    values = {"net": ["ö"], "size": [(3, 3)], "limit": [math.inf], "large": [2**70], "of": [of]}

    folder = execute(tmp_path, values, lambda _: {"f1": math.nan}).folder

    (row,) = json.loads((folder / "results.json").read_bytes(), parse_constant=pytest.fail)
    (cells,) = csv.DictReader(StringIO((folder / "results.csv").read_text(encoding="utf-8")))
    expected = {
        "net": "ö", "size": [3, 3], "limit": None, "large": 2**70, "of": {"1": {"a": "cpu"}}, "f1": None,
    }  # fmt: skip
    assert expected.items() <= row.items()
    assert {"f1": "", "net": "ö", "size": "(3, 3)", "limit": "inf"}.items() <= cells.items()


# Tables from elsewhere

RUNS = [
    (lr, seed, 0.9 + lr / 5 + (seed * seed * (3 if lr > 0.05 else 2) % 7) / 1000)
    for lr in (0.1, 0.01)
    for seed in range(8)
]
BETTER = "lr=0.1 is better than lr=0.01 by 0.01"
LOST = "this table does not name its hyperparameters"
NAMES = "load_table(runs, hyperparameters=['lr', 'seed'])"
NAMED = {"hyperparameters": ["lr"], "repeats": "seed", "goal": "max:f1"}


def frame():
    return pd.DataFrame(RUNS, columns=["lr", "seed", "f1"])


def of_concat(_):
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


def of_mlflow(_):
    table = pd.DataFrame({"run_id": [f"{row:032x}" for row in range(16)], "status": "FINISHED"})
    table["start_time"] = pd.Timestamp("2026-11-25", tz="UTC")
    table["metrics.f1"] = frame()["f1"]
    for name in ("lr", "seed"):
        table[f"params.{name}"] = frame()[name].astype(str)  # as mlflow.search_runs() has them
    return table, {"hyperparameters": ["params.lr"], "repeats": "params.seed", "goal": "max:metrics.f1"}


def of_optuna(_):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, of = optuna.create_study(direction="maximize"), optuna.distributions
    spaces = {"lr": of.FloatDistribution(0.01, 1), "seed": of.IntDistribution(0, 9)}
    for lr, seed, f1 in RUNS:
        study.add_trial(optuna.create_trial(params={"lr": lr, "seed": seed}, distributions=spaces, value=f1))
    pruned = optuna.trial.TrialState.PRUNED
    study.add_trial(optuna.create_trial(params={"lr": 0.1, "seed": 9}, distributions=spaces, state=pruned))
    return study.trials_dataframe(), {
        "hyperparameters": ["params_lr"], "repeats": "params_seed", "goal": "max:value",
    }  # fmt: skip


@pytest.mark.parametrize("table_of", [of_concat, of_wandb, of_mlflow, of_optuna])
def test_a_table_from_elsewhere_whose_axes_are_named_gets_every_answer(tmp_path, table_of):
    table, names = table_of(tmp_path)
    names = {**NAMED, **names}
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
    with pytest.raises(InvalidArgumentError, match=LOST) as caught:
        answer(frame().assign(accuracy=frame()["f1"]))

    assert str(caught.value).endswith(f"name them, as {NAMES}")
    assert best(frame(), "max:f1")["f1"].iloc[0] == max(f1 for _, _, f1 in RUNS)  # rows can be sorted


KEEPING = {
    "filter": lambda runs: runs[runs["seed"] < 8],
    "query": lambda runs: runs.query("epochs == 1"),
    "concat of its parts": lambda runs: pd.concat([runs[runs["lr"] > 0.05], runs[runs["lr"] < 0.05]]),
    "merge with its own columns": lambda runs: runs.merge(runs[["run"]], on="run"),
    "groupby, as columns": lambda runs: runs.groupby(["lr", "seed"], as_index=False).first(),
    "columns": lambda runs: runs[["lr", "seed", "f1"]],
    "assign, sort": lambda runs: runs.assign(size=1).sort_values("seed"),
    "pickle": lambda runs: pickle.loads(pickle.dumps(runs)),
    "index": lambda runs: runs.set_index("lr").reset_index(),
}
LOSING = [
    lambda runs: runs.merge(pd.DataFrame({"run": range(1, 17), "size": 1}), on="run"),
    lambda runs: pd.concat([runs, pd.DataFrame(runs.to_dict("list")).assign(lr=1.0)]),
    lambda runs: pd.read_csv(StringIO(runs.to_csv(index=False))),
    lambda runs: pd.DataFrame(runs.to_dict("records")),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    scores = {(lr, seed): f1 for lr, seed, f1 in RUNS}
    grid, root = {"lr": [0.1, 0.01], "seed": range(8)}, tmp_path_factory.mktemp("root")
    return execute(root, grid, lambda run: {"f1": scores[run.lr, run.seed]}, goal="max:f1").runs


def test_goal_and_repeats_survive_where_pandas_lets_them(runs):
    said = str(verdict(runs))
    for kind, keep in KEEPING.items():
        assert (kind, str(verdict(keep(runs)))) == (kind, said)
        assert len(best(keep(runs))) == 2


@pytest.mark.parametrize("lose", LOSING)
def test_what_pandas_drops_is_asked_for_in_one_sentence(runs, lose):
    table = lose(runs)

    for answer in (best, show, verdict, effects):
        with pytest.raises(InvalidArgumentError, match=LOST) as caught:
            answer(table)
        assert str(caught.value).endswith(NAMES)
    assert best(load_table(table, **NAMED))["lr"].iloc[-1] == 0.01


def test_hyperparameters_in_the_index_and_renamed_ones_are_asked_back(runs):
    renamed = runs.rename(columns={"lr": "rate"})

    for table in (runs.groupby(["lr", "seed"]).first(), runs.set_index("lr")):
        with pytest.raises(InvalidArgumentError, match=r"'lr' is in the index: give runs.reset_index\(\)"):
            best(table)
        assert str(verdict(load_table(table))) == str(verdict(runs))
    assert load_table(runs.set_index("lr", drop=False))["lr"].tolist() == runs["lr"].tolist()
    with pytest.raises(InvalidArgumentError, match=r"load_table\(runs, hyperparameters=\['seed', 'rate'\]\)"):
        verdict(renamed, "rate")
    assert "rate=0.1 is better" in str(verdict(load_table(renamed, hyperparameters=["seed", "rate"]), "rate"))


@pytest.mark.parametrize(
    ("given", "changed", "named"),
    [
        ({"hyperparameters": ["rate"]}, {}, "no column 'rate'; they have: lr, seed, f1"),
        ({"repeats": "fold"}, {}, "no column 'fold'"),
        ({"goal": "max:f2"}, {}, "no column 'f2'; did you mean 'f1'"),
        ({}, {"status": "ready"}, "'status' has 'ready', which is no status of a run"),
    ],
)
def test_names_that_are_no_columns_and_an_unknown_status_are_refused(given, changed, named):
    with pytest.raises(InvalidArgumentError, match=named):
        load_table(frame().assign(**changed), **{**NAMED, **given})


def test_runs_with_names_are_ranked_and_named_by_them(tmp_path):
    runs = frame().assign(run=[f"lr{lr}_s{seed}" for lr, seed, _ in RUNS])
    names = runs.sort_values("f1", ascending=False, kind="stable")["run"].tolist()
    settings = frame().assign(run=["wide" if lr > 0.05 else "narrow" for lr, _, _ in RUNS], epoch=5)

    table = load_table(runs, hyperparameters=["run"], goal="max:f1")

    for found in (best(runs, "max:f1"), show(table).table, best(table), verdict(table).table):
        assert found["run"].tolist() == names
    assert names[0] in text_of(parse(write_report(table, tmp_path / "page.html")))
    by_name = load_table(settings, **{**NAMED, "hyperparameters": ["run"]})
    assert str(verdict(by_name)).startswith("run=wide is better than run=narrow by 0.01")


@pytest.mark.parametrize(
    ("attempts", "failed", "repeats"),
    [
        (["crashed", "finished"], 0, "8"), (["finished", "preempted"], 0, "8"),
        (["crashed", "failed"], 1, "7 of 8, 1 failed"), (["crashed", "running", "crashed"], 0, "7 of 8"),
    ],
)  # fmt: skip
def test_a_repeat_that_was_run_again_is_lost_only_if_no_attempt_has_completed(attempts, failed, repeats):
    others = frame().assign(State="finished").query("lr != 0.1 or seed != 5")
    rows = [(0.1, 5, 0.92 if status == "finished" else np.nan, status) for status in attempts]
    table = pd.concat([others, pd.DataFrame(rows, columns=[*others])])

    runs = load_table(table, **NAMED)
    ranked = best(runs).iloc[0]

    assert (ranked["all repeats"], ranked.get("failed repeats", 0)) == (8, failed)
    for decision in (verdict(runs), verdict(runs, "lr")):
        assert ("lost 1 of 8 seeds (failed)" in str(decision)) == bool(failed)
    assert str(show(runs).table["repeats"].iloc[0]) == repeats
    assert len(best(runs, repeats=())) == 15 + len(attempts)


# The rows that a condition chooses

HERE = Path(__file__).parent
CASES = json.loads((HERE / "where_cases.json").read_text(encoding="utf-8"))
"""Comparisons that are tried on the command line and on the page."""


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Execute the runs of the cases: a missing value is a hyperparameter that the run lacks."""
    root = tmp_path_factory.mktemp("odd")
    columns = {**CASES["columns"], "gain": [1, 0.1, 10**400, {"number": "nan"}]}
    columns["loss"] = columns.pop("loss (hyperparameter)")
    statuses, seconds = columns.pop("status"), columns.pop("epoch duration")
    del columns["run"], columns["device"]  # which is not there
    manager = RunManager("e", root, tensorboard=False, display=False)
    for row, status in enumerate(statuses):
        params = {name: value_of(column[row]) for name, column in columns.items()}
        params = {name: value for name, value in params.items() if value is not ...}
        with suppress(ValueError, torch.OutOfMemoryError), manager.run(params):
            for _ in manager.epochs(1) if status != "out of memory" else ():
                manager.track_loss(0.5, 1)
            if status != "completed":
                raise ValueError if status == "failed" else torch.OutOfMemoryError
    for row, folder in enumerate(run_folders(root / "e")):
        content = lines(journals(folder)[0])
        for line in content:
            if line["type"] == "epoch":
                line["metrics"]["epoch duration"] = seconds[row]
        write(journals(folder)[0], content)
    return root / "e"


def value_of(written):
    """Return a value of a column; JSON has no NaN and no tuples."""
    if isinstance(written, dict):
        return ... if "number" in written else ast.literal_eval(written["text"])
    return written


def test_rows_are_chosen_by_what_their_columns_hold_and_columns_by_their_names(odd):
    for where, runs in (each for each in CASES["chosen"] if "device" not in each[0]):
        answer = command("list", odd, "--where", where, "--json")
        assert (where, [row["run"] for row in json.loads(answer.out or "[]")]) == (where, runs)
    answer = command("list", odd, "--where", "lr<0.1", "--where", "status=failed", "--json")
    assert [row["run"] for row in json.loads(answer.out)] == [2]
    answer = command("list", odd, "--columns", " lr,epoch duration , 'opt.lr',\"run\",")
    assert answer.out.splitlines()[0].split() == ["lr", "epoch", "duration", "opt.lr", "run"]


def test_a_mistake_in_a_condition_is_explained(odd):
    further = [("status=faild", "did you mean 'failed'"), ("gain=big", '--where "lr<0.1"')]
    for where, problem in [*CASES["refused"], *further]:
        answer = command("list", odd, f"--where={where}")
        assert (where, answer.code, problem in answer.words) == (where, 2, True)


ON_THE_PAGE = """
const fs = require("fs");
eval(fs.readFileSync(process.argv[1], "utf8").replace("const where =", "globalThis.where ="));
const cases = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const value = (each) => (each && each.number === "nan" ? NaN : each);
const columns = new Map(Object.entries(cases.columns).map(([name, column]) => [name, column.map(value)]));
const run = columns.get("run");
const read = (text) => {
  try {
    const condition = where.parse(text, columns);
    return { runs: run.filter((_, row) => condition(row)) };
  } catch (error) {
    if (!(error instanceof where.Refused)) throw error;
    return { why: error.message };
  }
};
console.log(JSON.stringify(Object.fromEntries(JSON.parse(process.argv[3]).map((text) => [text, read(text)]))));
"""


@pytest.mark.skipif(which("node") is None, reason="needs node: apt-get install nodejs")
def test_the_page_chooses_the_same_runs_or_explains_why_it_cannot():
    chosen, refused = {**dict(CASES["chosen"]), "lr<0.1 and status=failed": [2]}, dict(CASES["refused"])
    script = HERE.parents[1] / "runmanager" / "report" / "assets" / "where.js"
    cases = HERE / "where_cases.json"

    command = ["node", "-e", ON_THE_PAGE, f"{script}", f"{cases}", json.dumps([*chosen, *refused])]
    answers = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)

    assert {where: answers[where].get("runs") for where in chosen} == chosen
    assert all(problem in answers[where]["why"] for where, problem in refused.items())


# The causes of failures

GRID = list(itertools.product([0.1, 0.01], [32, 128], [50, 100], [1, 2]))


def told(tmp_path, causes, repeats=(), **columns):
    """Return status, cause and runs of each group of failures on the page."""
    ended = [causes(*params) or ("completed", "") for params in GRID]
    table = pd.DataFrame(GRID, columns=["lr", "width", "batch_size", "seed"]).assign(**columns)
    names = [*table]
    table["status"], table["error"] = zip(*ended, strict=True)
    runs = load_table(
        table.assign(run=range(1, 17), f1=0.5), hyperparameters=names, repeats=repeats, goal="max:f1"
    )
    page, said = parse(write_report(runs, tmp_path / "page.html")), []
    for part in (part for part in page.iter() if "cause" in part.get("class", "").split()):
        status, heading, cause = (text_of(next(part.iter(name))) for name in ("span", "h3", "p"))
        which = heading.removeprefix(status).strip()
        said.append((status, cause.partition("Next: ")[0].strip(), which))
    return said


def diverging(lr, width, batch_size, seed):
    if lr == 0.1 and width == 128:
        where = f"in epoch 2, step {batch_size + seed}; before it was 0.{seed}{batch_size}"
        return ("diverged", f"loss became nan {where}")
    return ("failed", "ValueError: no (in train.py:7)") if lr == 0.01 and seed == 1 else None


NO = ("failed", "ValueError: no")
LACKS = ("unavailable", "device 'cuda' is not there")
CAUSES: dict[str, Any] = {
    "two causes": (
        diverging, {}, ["all 4 runs with lr=0.1 and width=128", "all 4 runs with lr=0.01 and seed=1"],
    ),
    "some of a setting": (
        lambda lr, width, _, seed: NO if lr == 0.1 and (width == 32) == (seed == 1) else None, {},
        ["4 of the 8 runs with lr=0.1"],
    ),
    "repeats are no setting": (
        lambda *params: NO if params[-1] == 1 else None, {"repeats": "seed"}, ["8 of the 16 runs"],
    ),
    "one run": (
        lambda *params: NO if params == GRID[2] else None, {},
        ["run 3 (lr=0.1 width=32 batch_size=100 seed=1)"],
    ),
    "missing devices are last": (
        lambda lr, width, *_: LACKS if width == 128 else NO if lr == 0.1 else None, {},
        ["all 4 runs with lr=0.1 and width=32", "all 8 runs with width=128"],
    ),
    "what pending runs share is no cause": (
        lambda lr, *rest: (NO if rest[:2] == (32, 50) else ("pending", "")) if lr == 0.1 else None, {},
        ["both runs with lr=0.1 and width=32 and batch_size=50"],
    ),
    "a missing device": (
        lambda lr, *_: LACKS if lr == 0.1 else ("pending", ""), {"device": ["cuda"] * 8 + ["cpu"] * 8},
        ["all 8 runs with device=cuda"],
    ),
    "none": (lambda *_: None, {}, []),
}  # fmt: skip


@pytest.mark.parametrize("case", CAUSES)
def test_runs_of_a_cause_are_one_group_with_the_setting_that_they_share(tmp_path, case):
    causes, options, expected = CAUSES[case]

    assert [which for _, _, which in told(tmp_path, causes, **options)] == expected


@pytest.mark.parametrize(
    ("errors", "causes"),
    [
        (["KeyError: 'a' (in x.py:3)", "KeyError: 'b' (in x.py:3)"], ["KeyError: 'a' or 'b' (in x.py:3)"]),
        (["KeyError: 'a' (in x.py:3)", "KeyError: 'a' (in x.py:4)"], None),
        (["bad value -1.5e-3 at 0x7f3a", "bad value 2 at 0x12"], ["bad value -1.5e-3 or 2 at 0x7f3a or 0x12"]),
        (["loss became nan in epoch 2", "loss became inf in epoch 2"], ["loss became nan or inf in epoch 2"]),
        (["step 1", "step 2", "step 3"], ["step …"]),
        (["device 'cuda:1' is lost", "out of file"], None),
        (["resnet18 is unknown", "resnet34 is unknown"], None),
        (["shapes (20x16 and 8x2)", "shapes (20x32 and 8x2)"], ["shapes (20x16 or 20x32 and 8x2)"]),
        (["\x1b[31mno"], ["\\x1b[31mno"]),
    ],
)
def test_causes_are_alike_if_they_differ_in_numbers_and_quotations_only(tmp_path, errors, causes):
    by_run = dict(zip(GRID, errors, strict=False))

    said = told(tmp_path, lambda *params: ("failed", by_run[params]) if params in by_run else None)

    assert [cause.partition(" run 1,")[0] for _, cause, _ in said] == (causes or errors)


# What `show` shows


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Twelve runs, of which one has failed."""

    def scores(run):
        if (run.lr, run.net, run.seed) == (0.1, "c", 2):
            raise ValueError("no <batch> was left")
        return {"f1": run.lr + run.seed / 100, "test_loss": 0.5}

    grid = {"lr": [0.1, 0.01], "net": ["a_b", "c"], "seed": [1, 2, 3]}
    return execute(tmp_path_factory.mktemp("runs"), grid, scores, goal="max:f1", note="larger <steps>?").runs


@pytest.mark.parametrize("width", [40, 80, 120])
def test_print_fits_the_terminal_and_names_what_it_leaves_out(shown, width):
    with terminal(width):
        lines = repr(show(shown, repeats=())).split("\n")

    assert max(map(len, lines)) <= width
    assert "not shown: " in " ".join(lines)
    assert "✗ failed" in "\n".join(lines) or width < 80


def test_a_notebook_gets_at_most_eight_columns_with_bars_and_escaped_notes_in_order(shown):
    view = show(shown.assign(**{f"metric_{n}": 0.5 + shown["run"] / 100 for n in range(9)}), repeats=())

    html = view._repr_html_()

    assert html.count("<th ") == 8
    assert "linear-gradient" in html
    assert "font-weight: bold" in html
    assert "Not shown: " in html
    assert "Note: larger &lt;steps&gt;? " in html
    assert "larger <steps>?" in view.caption
    for each in (view, show(effects(shown))):
        assert len(list(parse(each._repr_html_()).iter("table"))) == 1


def test_settings_are_written_with_mean_and_interval_for_a_text(shown):
    view = show(shown, repeats="seed", n=2)

    markdown, latex = view.to_markdown().split("\n"), view.to_latex().split("\n")
    assert markdown[0].startswith("| lr | net | f1 | 95 % interval | repeats | ")
    assert set(markdown[1]) <= set("|-: ")
    assert markdown[2].startswith("| **0.1** | **a\\_b** | **0.12** | **0.0952 to 0.1448** | ")
    assert (latex[0][:18], latex[-1]) == ("\\begin{tabular}{rl", "\\end{tabular}")
    assert latex[2].startswith("lr & net & f1 & 95 \\% interval & repeats")
    assert latex[4].startswith("0.1 & a\\_b & 0.12 $\\pm$ 0.01 & 0.09")


def test_the_notes_of_several_experiments_are_named(tmp_path):
    for name, note in (("a", "of a"), ("b", "of b"), ("c", None)):
        execute(tmp_path, {"lr": [0.1]}, lambda run: {"f1": run.lr}, name, goal="max:f1", note=note)
    runs = load_runs(tmp_path)

    assert [f"note of {name}: of {name}" in show(runs).caption for name in "abc"] == [True, True, False]
    assert "note of b: of b" in show(runs.query("experiment != 'c'")).caption
    assert "note" not in show(runs.query("experiment == 'c'")).caption
