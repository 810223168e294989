import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager import load_runs, show
from runmanager.errors import InvalidArgumentError
from runmanager.results.where import names_in, parse, select
from tests.report.reading import write_runs

RUNS = pd.DataFrame({
    "run": [1, 2, 3, 4],
    "status": ["completed", "failed", "out of memory", "completed"],
    "lr": [0.1, 0.01, 0.01, 1e-3],
    "epoch duration": [1.0, 2.0, math.nan, 4.0],
    "optimizer": ["adam", "sgd", "adam", "O'Neil"],
    "nesterov": [True, False, False, True],
    "clip": pd.Series([None, 1.0, "auto", pd.NA], dtype="object"),
    "betas": [(0.9, 0.99), (0.5,), (0.9, 0.99), ()],
    "and": [1, 2, 3, 4],
})  # fmt: skip


@pytest.mark.parametrize(
    ("where", "runs"),
    [
        ("lr<0.1 and status=failed", [2]),
        ("lr<0.1", [2, 3, 4]),
        ("lr <= 1e-2 AND NOT run>3", [2, 3]),
        ("lr=.01 or lr==1e-3", [2, 3, 4]),
        ("run=1 or run=2 and status=completed", [1]),
        ("(run=1 or run=2) and status=completed", [1]),
        ("not run=1 and run<3", [2]),
        ("not (run=1 or run=4)", [2, 3]),
        ("run in (1, 4)", [1, 4]),
        ("run not in (1, 4)", [2, 3]),
        ('status in ("out of memory", failed)', [2, 3]),
        ("status != completed", [2, 3]),
        ('"epoch duration" > 1.5', [2, 4]),
        ("'epoch duration' = nan", [3]),
        ('"epoch duration" != nan', [1, 2, 4]),
        ('not "epoch duration" >= 2', [1, 3]),
        ("optimizer=adam", [1, 3]),
        ("optimizer='O\\'Neil'", [4]),
        ('optimizer="O\'Neil"', [4]),
        ("optimizer<b", [1, 3, 4]),
        ("nesterov=true", [1, 4]),
        ("nesterov=False and lr=0.01", [2, 3]),
        ("clip=None", [1]),
        ("clip=1", [2]),
        ("clip=auto", [3]),
        ("clip='1'", []),
        ("clip=nan", [4]),
        ("clip>0.5", [2]),
        ("betas='(0.9, 0.99)'", [1, 3]),
        ("'and'=2", [2]),
        ("lr=inf", []),
    ],
)
def test_rows_are_chosen_by_what_their_columns_hold(where, runs):
    assert select(RUNS, where)["run"].tolist() == runs


@pytest.mark.parametrize(
    ("where", "problem", "marked"),
    [
        ("widht=3 and run=1", "these runs have no column 'widht'; they have: run, status", "widht"),
        ("run=1 and optimiser=adam", "no column 'optimiser'; did you mean 'optimizer'?", "optimiser"),
        ("status=faild", "no status is 'faild'; did you mean 'failed'?", "faild"),
        ("status in (completed, lost)", "no status is 'lost'; the statuses are: completed, failed", "lost"),
        ("lr<small", "column 'lr' holds numbers, as 0.1, 0.01, 0.001", "small"),
        ("lr='0.1'", "what is in quotes is text", "'0.1'"),
        ("optimizer<3", "column 'optimizer' holds text, as adam, sgd, O'Neil", "3"),
        ("nesterov>0", "column 'nesterov' holds booleans", "0"),
        ("nesterov=1", "column 'nesterov' holds booleans", "1"),
        ("lr=true", "column 'lr' holds numbers", "true"),
        ("epoch duration<5", 'several words is written in quotes: "epoch duration"', "epoch duration"),
        ("status=out of memory", 'several words is written in quotes: "out of memory"', "out of memory"),
        ("0.1>lr", "a comparison begins with the name of a column, as lr<0.1", "0.1"),
        ("lr<0.1 lr>0", "expected 'and', 'or' or the end", "lr"),
        ("lr<0.1)", "expected 'and', 'or' or the end", ")"),
        ("(lr<0.1", "this parenthesis is not closed", "("),
        ("(lr<0.1 run=1)", "expected 'and', 'or' or ')'", "run"),
        ("optimizer='adam", "this quote is not closed", "'"),
        ("lr ! 3", "unexpected '!'", "!"),
        ("lr in 3", "expected '(' and values, as lr in (1, 2)", "3"),
        ("lr in (1; 2)", "holds numbers", "1;"),
        ("lr in (1 2)", "expected ',' or ')'", "2"),
        ("lr not 3", "expected 'in', =, !=, <, <=, > or >= after 'lr'", "3"),
        ("lr = and", "expected a value; this word is written in quotes", "and"),
        ("not", "expected the name of a column", " "),
        ("", "expected the name of a column", " "),
        ("(" * 60 + "lr=1", "more than 50 parentheses are open", "("),
    ],
)
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


@given(st.text(max_size=30))
def test_whatever_is_given_is_read_or_refused_in_a_sentence(where):
    columns = {str(name): RUNS[name].tolist() for name in RUNS}
    problem = "where: "
    try:
        parse(where, columns)()
    except InvalidArgumentError as error:
        problem = str(error)

    assert problem.startswith("where: ")
    assert all(line.isprintable() for line in problem.split("\n"))


@given(st.lists(st.sampled_from(["run<3", "lr=0.1", "status=failed"]), min_size=1, max_size=4), st.data())
def test_not_of_several_is_what_logic_says(parts, data):
    word = data.draw(st.sampled_from(["and", "or"]))
    other = {"and": "or", "or": "and"}[word]

    opposite = select(RUNS, f"not ({f' {word} '.join(parts)})")
    each = select(RUNS, f" {other} ".join(f"not {part}" for part in parts))

    assert opposite.equals(each)


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
