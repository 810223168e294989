import csv
import io
import json
import math
import sys
from contextlib import suppress
from importlib.util import find_spec

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from runmanager import RunManager, best, compare, export, load_results, load_runs, load_table
from runmanager.core import files
from runmanager.core.state import read_experiment
from runmanager.errors import GridError, StorageError
from runmanager.tables.columns import HYPERPARAMETERS, from_columns
from runmanager.tables.formats import to_csv, to_rows
from runmanager.tables.results_files import FORMULA, write_results
from tests.tables.run_tables import record, write_run

NEEDS_PYARROW = pytest.mark.skipif(find_spec("pyarrow") is None, reason="Parquet needs pyarrow")
FORMATS = [
    ".csv",
    ".json",
    pytest.param(".parquet", marks=NEEDS_PYARROW),
]

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
    *(
        st.lists(kind, min_size=3, max_size=3)
        for kind in (VALUES, st.text(), st.integers(), st.floats(), st.booleans())
    )
)


def assert_same(found, expected):
    assert_frame_equal(found, expected.reset_index(drop=True))
    assert found.attrs[HYPERPARAMETERS] == expected.attrs[HYPERPARAMETERS]
    for name in expected:
        assert list(map(repr, found[name].tolist())) == list(map(repr, expected[name].tolist()))


@pytest.mark.parametrize("suffix", FORMATS)
@given(
    columns=st.dictionaries(st.text(min_size=1, max_size=3) | st.just("=lr"), COLUMNS, min_size=1, max_size=3)
)
def test_every_type_survives_export_and_import(tmp_path_factory, suffix, columns):
    table = from_columns(columns, [])
    path = tmp_path_factory.getbasetemp() / f"table{suffix}"

    export(table, path)

    assert_same(load_table(path), table)


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_columns_of_an_exported_pivot_table_may_be_numbers(tmp_path, suffix):
    export(pd.DataFrame({64: [0.5, 1.0]}), tmp_path / f"table{suffix}")

    assert load_table(tmp_path / f"table{suffix}")["64"].tolist() == [0.5, 1.0]


def study(root, *, values=(0.1, 0.2), metrics=("f1",)):
    """Leave behind what a study of some runs does: the last has failed, one is not begun."""
    manager = RunManager("study", root, tensorboard=False, display=False)
    for value in values:
        with manager.run({"value": value, "device": "cpu"}):
            for _ in manager.epochs(2):
                manager.track_loss(0.5, 10)
                manager.track(dict.fromkeys(metrics, 1.0))
    with suppress(ValueError), manager.run({"value": 9, "device": "=1+1"}):
        raise ValueError("=cmd()")


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("load", [load_results, load_runs])
def test_what_was_loaded_comes_back_from_a_file(tmp_path, suffix, load):
    study(tmp_path / "runs", values=(0.1, 1, (3, 3), "=1", None, torch.float16))
    table = load(tmp_path / "runs")

    export(table, tmp_path / "new folder" / f"table{suffix}")

    assert_same(load_table(tmp_path / "new folder" / f"table{suffix}"), table)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("load", [load_results, load_runs])
def test_hyperparameters_that_are_named_like_columns_come_back_from_a_file(tmp_path, suffix, load):
    for value in (1, 2):
        write_run(
            tmp_path / "runs" / "study", {"epochs": value, "status": "odd", "lr": 0.1}, [record(1, loss=0.5)]
        )
    table = load(tmp_path / "runs")

    export(table, tmp_path / f"table{suffix}")

    assert "epochs (hyperparameter)" in table
    assert_same(load_table(tmp_path / f"table{suffix}"), table)


@pytest.mark.parametrize("suffix", FORMATS)
def test_several_experiments_and_selected_rows_come_back(tmp_path, suffix):
    study(tmp_path / "runs")
    (tmp_path / "runs" / "study").rename(tmp_path / "runs" / "first")
    study(tmp_path / "runs", values=("a",), metrics=())
    runs = load_runs(tmp_path / "runs")
    table = runs[runs["experiment"] == "first"].sort_values("run", ascending=False)

    export(runs, tmp_path / f"all{suffix}")
    export(table, tmp_path / f"some{suffix}")

    assert_same(load_table(tmp_path / f"all{suffix}"), runs)
    some = load_table(tmp_path / f"some{suffix}")
    assert list(map(repr, some.to_dict(orient="records"))) == list(map(repr, table.to_dict(orient="records")))


@pytest.mark.parametrize("suffix", FORMATS)
def test_imported_runs_can_be_compared(tmp_path, suffix):
    study(tmp_path / "runs")
    export(load_runs(tmp_path / "runs"), tmp_path / f"runs{suffix}")

    pairs = compare(load_table(tmp_path / f"runs{suffix}"), "value", "loss")

    assert pairs[["0.1", "0.2"]].to_numpy().tolist() == [[0.5, 0.5]]


@pytest.mark.slow(everywhere=True)
@given(st.lists(st.text(st.characters(codec=None)) | st.sampled_from(TRICKY), min_size=1), st.text(min_size=1))
def test_no_text_of_a_csv_file_begins_like_a_formula(tmp_path_factory, values, name):
    path = tmp_path_factory.getbasetemp() / "formulas.csv"
    export(from_columns({name: list(values), "last": list(values)}, []), path)

    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)

    assert not header[0].startswith(FORMULA)
    texts = [row[1] for row, value in zip(rows, values, strict=True) if not isinstance(value, (float, int))]
    assert not [text for text in texts if text.startswith(FORMULA)]


def test_a_csv_file_is_what_a_spreadsheet_and_pandas_read(tmp_path):
    table = from_columns(
        {
            "run": [1, 2],
            "loss": [0.5, math.nan],
            "net": ["=a", "b"],
            "size": [(3, 3), pd.NA],
            "error": ["", ""],
        },
        ["net", "size"],
    )

    export(table, tmp_path / "runs.csv")

    assert (tmp_path / "runs.csv").read_text(encoding="utf-8") == (
        "run,loss,net,size,error,hyperparameters\n"
        '1,0.5,\'=a,"{""$tuple"": [3, 3]}",,"{""hyperparameters"": [""net"", ""size""]}"\n'
        '2,,b,,,"{""hyperparameters"": [""net"", ""size""]}"\n'
    )


def tutorial(folder, **more):
    """Write results.csv as the tutorial's `save` does."""
    rows = [
        {"run": run, "epoch": epoch, "loss": 1.0, "accuracy": 0.5, "epoch duration": 2.0, "run duration": 3.0}
        | {"lr": lr, "device": "cuda"}
        | more
        for run, lr in ((1, 0.01), (2, 0.001))
        for epoch in (1, 2)
    ]
    pd.DataFrame(rows).to_csv(folder / "results.csv")
    return rows


def test_the_tutorials_file_gives_what_load_results_gives(tmp_path):
    rows = tutorial(tmp_path, val_loss=0.5, test_accuracy=0.25)

    table = load_table(tmp_path / "results.csv", ["lr", "device"])

    assert table.to_dict(orient="records") == rows
    assert table.attrs[HYPERPARAMETERS] == ["lr", "device"]
    assert [str(table[name].dtype) for name in ("run", "epoch", "loss", "lr")] == [
        "int64",
        "int64",
        "float64",
        "float64",
    ]


def test_the_last_epochs_of_the_tutorial_can_be_compared(tmp_path):
    tutorial(tmp_path)

    last = load_table(tmp_path / "results.csv", ["lr", "device"]).groupby("run").tail(1)

    assert list(compare(last, "lr")) == ["0.01", "0.001", "0.001 vs 0.01", "0.001 / 0.01"]


def test_the_table_that_a_grid_writes_is_read(tmp_path):
    study(tmp_path)
    table = load_results(tmp_path)
    (tmp_path / "results.csv").write_text(to_csv(table))

    found = load_table(tmp_path / "results.csv", ["value", "device"])

    assert_same(found, table)


def test_whole_numbers_among_other_numbers_are_decimal(tmp_path):
    (tmp_path / "runs.csv").write_text("lr,seed,top5,f1\n0.1,1,1,0\n0.1,2,,0.5\n")

    table = load_table(tmp_path / "runs.csv", ["lr", "seed"])

    assert [str(kind) for kind in table.dtypes] == ["float64", "int64", "float64", "float64"]


@pytest.mark.parametrize("diverged", ["nan", "NaN"])
def test_a_metric_that_diverged_beside_a_missing_one_is_a_number(tmp_path, diverged):
    (tmp_path / "runs.csv").write_text(f"lr,f1\n0.1,{diverged}\n0.2,\n0.3,1\n")

    assert best(load_table(tmp_path / "runs.csv", ["lr"], goal="max:f1"))["lr"].tolist()[0] == 0.3


@pytest.mark.parametrize("name", ["runs.xlsx", "runs", ".csv"])
def test_other_formats_are_refused(tmp_path, name):
    for call in (lambda path: export(pd.DataFrame(), path), load_table):
        with pytest.raises(GridError, match=r"a table.s file name must end in .csv, .json, .parquet; got"):
            call(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""), ("a.csv", b"a\n\xff\n"), ("a.csv", b"a\n1,2,3\n1\n"), ("a.json", b""),
        ("a.json", b"{}"),
        ("a.json", b"[1]"), ("a.json", b'{"hyperparameters": [], "columns": ["a"], "rows": [{"a": {"b": 1}}]}'),
        pytest.param("a.parquet", b"PAR1", marks=NEEDS_PYARROW),
    ],
)  # fmt: skip
def test_files_that_hold_no_table_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(GridError, match=rf"{name}' holds no table that export\(\) or the tutorial wrote: "):
        load_table(tmp_path / name)


def test_the_json_file_of_a_grid_is_refused_with_the_call_that_reads_it(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(tutorial(tmp_path)))

    with pytest.raises(GridError, match=r"load_table\(pandas.read_json\(path\), hyperparameters="):
        load_table(tmp_path / "results.json")


def test_a_hyperparameter_that_is_no_column_is_refused(tmp_path):
    tutorial(tmp_path)

    with pytest.raises(GridError, match=r"these runs have no column 'momentum'; they have: run, epoch, loss"):
        load_table(tmp_path / "results.csv", ["lr", "momentum"])


def test_without_pyarrow_parquet_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(GridError) as caught:
        export(pd.DataFrame({"run": [1]}), tmp_path / "runs.parquet")

    assert caught.value.problems == ["a Parquet file needs pyarrow: pip install 'torch-runmanager[parquet]'"]


def test_an_export_that_fails_keeps_the_file_before(tmp_path, monkeypatch):
    def fail(*_arguments):
        raise OSError(28, "No space left on device")

    path = tmp_path / "runs.csv"
    export(pd.DataFrame({"run": [1]}), path)
    before = path.read_bytes()

    monkeypatch.setattr(files, "_write_all", fail)
    with pytest.raises(StorageError):
        export(pd.DataFrame({"run": [2]}), path)

    assert path.read_bytes() == before


FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\0")


def cells(table):
    return list(csv.reader(io.StringIO(to_csv(table), newline="")))[1:]


@pytest.mark.parametrize("text", FORMULAS, ids=repr)
def test_text_that_a_spreadsheet_would_execute_gets_a_quote(text):
    table = pd.DataFrame({"name": [text, "x=1"], "mixed": [text, -1.5], "number": [-1, -2]})

    rows = cells(table)

    quoted = f"'{text}".replace("\r", "\n")
    assert rows == [[quoted, quoted, "-1"], ["x=1", "-1.5", "-2"]]


@given(st.lists(st.text() | st.floats() | st.integers() | st.booleans(), min_size=1, max_size=4))
def test_each_value_is_one_cell_and_no_text_begins_like_a_formula(values):
    table = pd.DataFrame({"value": pd.Series([*values, "=x"], dtype="object"), "last": "end"})

    rows = cells(table)

    assert [row[1:] for row in rows] == [["end"]] * (len(values) + 1)
    texts = [row[0] for row, value in zip(rows, values, strict=False) if isinstance(value, str)]
    assert not [text for text in texts if text.startswith(FORMULAS)]


def test_exports_are_whole_readable_files(tmp_path):
    write_run(tmp_path, {"net": "ö", "size": (3, 3), "limit": math.inf}, [record(1, loss=math.nan)])

    write_results(read_experiment(tmp_path), tmp_path)

    content = (tmp_path / "results.csv").read_text(encoding="utf-8")
    assert content == (
        'run,epoch,loss,accuracy,epoch duration,run duration,net,size,limit\n1,1,,0.25,2.0,9.0,ö,"(3, 3)",inf\n'
    )
    rows = json.loads((tmp_path / "results.json").read_bytes())
    assert rows == to_rows(load_results(tmp_path))
    assert rows == [
        {
            "run": 1, "epoch": 1, "loss": None, "accuracy": 0.25, "epoch duration": 2.0,
            "run duration": 9.0, "net": "ö", "size": [3, 3], "limit": None,
        }
    ]  # fmt: skip


def test_an_export_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    def fail(*_arguments):
        raise OSError(28, "No space left on device")

    write_run(tmp_path, {"lr": 0.1}, [record(1)])
    write_results(read_experiment(tmp_path), tmp_path)
    before = (tmp_path / "results.csv").read_bytes()

    monkeypatch.setattr(files, "_write_all", fail)
    with pytest.raises(StorageError):
        write_results([], tmp_path)

    assert (tmp_path / "results.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None), (pd.NA, None), (math.nan, None), (-math.inf, None), (True, True), (2**70, 2**70),
        ((1, math.nan), [1, None]), ({1: {"a": torch.device("cpu")}}, {"1": {"a": "cpu"}}), (float, "float"),
    ],
    ids=repr,
)  # fmt: skip
def test_values_become_strict_json(value, shown):
    table = pd.DataFrame({"value": pd.Series([value], dtype="object")})

    assert to_rows(table) == [{"value": shown}]


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_decides_is_exported_too(tmp_path, suffix):
    runs = pd.DataFrame(
        {"lr": [0.1, 0.1, 0.2, 0.2], "a b": 1, "seed": [1, 2, 1, 2], "kl": [1.0, 5.0, 2.0, 3.0]}
    )
    runs.attrs = {
        "hyperparameters": ["lr", "a b", "seed"],
        "goals": {"e": ["min:kl"]},
        "repeats": {"e": ["seed"]},
        "rules": {"e": {"margin": 0.1, "error": 0.2}},
    }
    path = tmp_path / f"runs{suffix}"

    export(runs, path)

    table = load_table(path)
    assert table.equals(runs)
    assert table.attrs == runs.attrs
    assert best(table)["lr"].tolist() == [0.2, 0.1]
