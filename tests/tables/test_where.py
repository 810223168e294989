import ast
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager import load_runs, show
from runmanager.errors import InvalidArgumentError
from runmanager.tables.where import names_in, select
from tests.report.reading import write_runs

CASES = json.loads(Path(__file__).with_name("where_cases.json").read_text(encoding="utf-8"))
"""What conditions are tried with, here and on the page (test_where_page.py), which knows fewer."""


def value_of(written):
    """Return a value of a column; JSON has no NaN and no tuples."""
    if isinstance(written, dict):
        return math.nan if "number" in written else ast.literal_eval(written["text"])
    return written


RUNS = pd.DataFrame({name: list(map(value_of, column)) for name, column in CASES["columns"].items()})
RUNS["clip"] = pd.Series([None, 1.0, "auto", pd.NA], dtype="object")  # as tables have missing values


@pytest.mark.parametrize(("where", "runs"), [*CASES["chosen"], *CASES["chosen by pandas alone"]])
def test_rows_are_chosen_by_what_their_columns_hold(where, runs):
    assert select(RUNS, where)["run"].tolist() == runs


@pytest.mark.parametrize(("where", "problem", "marked"), CASES["refused"])
def test_a_mistake_is_explained_and_marked(where, problem, marked):
    with pytest.raises(InvalidArgumentError) as error:
        select(RUNS, where)

    sentence, given_back, carets = str(error.value).split("\n")
    assert problem in sentence
    assert given_back == f"  {where}"
    begin = carets.index("^")
    assert f"{given_back} "[begin : begin + carets.count("^")] == marked


def test_the_mark_is_below_its_word_however_wide_letters_are_and_nothing_steers_the_terminal():
    with pytest.raises(InvalidArgumentError) as error:
        select(RUNS, "optimizer=猫\x1b and x=1")

    _, given_back, carets = str(error.value).split("\n")
    assert given_back == "  optimizer=猫\\x1b and x=1"
    assert carets == " " * 23 + "^"


PIECES = [
    *(
        "lr",
        "status",
        "epoch duration",
        "loss (hyperparameter)",
        "opt.lr",
        "clip",
        "and",
        "or",
        "not",
        "in",
        "@lr",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        ",",
        "=",
        "==",
        "!=",
        "<",
        ">=",
        "&",
        "|",
        "~",
        "`",
        "'",
        '"',
        ".",
        "__class__",
        "lambda:",
    ),
    *(
        "0.1",
        "-1",
        "1e999",
        "nan",
        "None",
        "true",
        "cuda:0",
        "failed",
        "(0.9, 0.99)",
        "eval",
        "\\",
        "\n",
        "\0",
        "{0}",
    ),
]


@given(st.text(max_size=30) | st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_whatever_is_given_is_read_or_refused_in_a_sentence(where):
    problem = "where: "
    try:
        select(RUNS, where)
    except InvalidArgumentError as error:
        problem = str(error)

    assert problem.startswith("where: ")
    assert all(line.isprintable() for line in problem.split("\n"))


@pytest.mark.slow(everywhere=True)
@given(st.lists(st.sampled_from(["run<3", "lr=0.1", "status=failed"]), min_size=1, max_size=4), st.data())
def test_not_of_several_is_what_logic_says(parts, data):
    word = data.draw(st.sampled_from(["and", "or"]))
    other = {"and": "or", "or": "and"}[word]

    opposite = select(RUNS, f"not ({f' {word} '.join(parts)})")
    each = select(RUNS, f" {other} ".join(f"not {part}" for part in parts))

    assert opposite.equals(each)


@pytest.mark.parametrize(
    "hostile",
    [
        "__import__('os').system('touch {mark}')=1",
        "lr.map(open('{mark}', 'w').write)>1",
        "@pd.io.common.os.system('touch {mark}')",
        "lr=@__builtins__.open('{mark}', 'w')",
        "betas=(open('{mark}', 'w'), 1)",
        "betas=[x for x in open('{mark}', 'w')]",
        "lr=`__import__('os').system('touch {mark}')`",
        "`lr`.pipe(exec, 'open(\\'{mark}\\', \\'w\\')')=1",
        "(lambda: open('{mark}', 'w'))()",
    ],
)
def test_nothing_is_executed(tmp_path, hostile):
    mark = tmp_path / "mark"

    with pytest.raises(InvalidArgumentError, match=r"(?s)^where: .*\^$"):
        select(RUNS, hostile.format(mark=mark))

    assert not mark.exists()


def test_names_of_columns_and_values_are_no_code_either(tmp_path):
    mark = tmp_path / "mark"
    code = f"open('{mark}', 'w')"
    runs = pd.DataFrame({code: [1, 2], "c0": ["@v1", code], "import": [3, 4]}, index=[7, 7])

    assert select(runs, f"`{code}`=2").equals(runs.iloc[[1]])
    assert select(runs, f'c0="{code}" and import>3').equals(runs.iloc[[1]])
    assert select(runs, "c0=@v1").equals(runs.iloc[[0]])
    assert not mark.exists()


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("where", ["lr=1 or " * 3000 + "lr=1", "not " * 9000 + "lr=1"])
def test_a_condition_that_is_too_long_is_refused_with_the_shorter_way(where):
    with pytest.raises(
        InvalidArgumentError, match=r"^where: too many comparisons or parentheses: use in \(a, b\)$"
    ):
        select(RUNS, where)


@pytest.mark.slow(everywhere=True)
def test_a_list_of_any_length_is_answered():
    assert select(RUNS, f"run in ({', '.join(map(str, range(2, 5000)))})")["run"].tolist() == [2, 3, 4]


def test_an_empty_table_has_no_such_rows():
    assert select(RUNS.head(0), "lr<0.1 and status=failed").empty


def test_names_are_split_at_commas_outside_of_quotes():
    assert names_in(" lr,epoch duration , 'a,b',\"-x\",") == ["lr", "epoch duration", "a,b", "-x"]


def test_show_takes_a_condition_and_keeps_what_decides():
    runs = RUNS.assign(accuracy=[0.5, 0.6, 0.7, 0.8])
    runs.attrs["hyperparameters"] = ["lr", "optimizer"]

    view = show(runs, where="status=completed")

    assert view.table["run"].tolist() == [4, 1]
    assert view.caption.startswith("best accuracy first")


def test_runs_that_were_loaded_are_chosen(tmp_path):
    write_runs(tmp_path / "a", [{"lr": 0.1}, {"lr": 0.01}], lambda run: run["lr"])

    assert select(load_runs(tmp_path), "lr<0.05 and status=completed")["run"].tolist() == [2]
