import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager import RunManager, run_grid
from runmanager.core import files
from runmanager.core.experiment import check_experiment
from runmanager.errors import GridError
from runmanager.tables.roots import nearest

NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=()))  # lone surrogates too
VALUES = st.one_of(TEXTS, st.floats(), st.integers(), st.booleans(), st.none(), st.lists(TEXTS, max_size=3))
PARAMS = st.dictionaries(NAMES, VALUES, max_size=12)


@given(PARAMS, st.integers(1, 10**6))
def test_a_run_folder_has_64_harmless_characters_at_most_its_number_first(params, number):
    folder = files.run_folder(number, params)

    assert re.fullmatch(r"\d{3,}(-[A-Za-z0-9._=~-]*|~[0-9a-f]{6})?", folder)
    assert len(folder) <= 64
    assert files.run_number(folder) == number


@given(PARAMS)
def test_a_run_folder_stays_inside_the_experiment(params):
    experiment = Path("/runs/exp")

    folder = (experiment / files.run_folder(1, params)).resolve()

    assert folder.parent == experiment


@pytest.mark.parametrize(
    ("params", "folder"),
    [
        ({}, "007"),
        ({"lr": 0.010, "device": "cuda:0"}, "007-lr=0.01-device=cuda0"),
        ({"path": "../../etc/passwd"}, "007-path=.._.._etc_passwd"),
        ({"net": "a\x00b\nc"}, "007-net=a_b_c"),
        ({"net": "größe"}, "007-net=gr_e"),
    ],
)
def test_a_run_folder_reads_like_its_parameters(params, folder):
    assert files.run_folder(7, params) == folder


def test_long_parameters_that_differ_at_their_end_get_different_folders():
    names = {files.run_folder(1, {"network": "a" * 200 + end}) for end in ("x", "y")}

    assert len(names) == 2
    assert all(re.fullmatch(r"001-network=a+~[0-9a-f]{6}", name) for name in names)


def test_numbers_get_as_many_digits_as_the_grid_needs():
    assert files.run_folder(7, {}, digits=4) == "0007"


@pytest.mark.parametrize(
    "folder", ["", "07", "7-lr=1", "abc", "001lr", "001_epochs", "001-a=b/c", "001-a=\x00", ".001"]
)
def test_other_folders_are_no_runs(folder):
    assert files.run_number(folder) is None


@given(st.text())
def test_a_refused_name_of_an_experiment_comes_with_one_that_is_accepted(name):
    try:
        check_experiment("runs", name)
    except GridError as error:
        better = ast.literal_eval(error.problems[0].rpartition(": write ")[2])

        check_experiment("runs", better)


@pytest.mark.parametrize("root", ["file", "file/below"])
def test_a_root_that_is_a_file_is_refused(tmp_path, monkeypatch, root):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    check_experiment("not/there/yet", "e")

    with pytest.raises(GridError, match=r"^root must be a folder, such as 'runs'; 'file' is a file$"):
        check_experiment(root, "e")
    with pytest.raises(GridError, match="'file' is a file"):
        RunManager("e", root)
    with pytest.raises(GridError, match=r"(?s)2 problems.*'a b'.*'file' is a file"):
        run_grid({"lr": [1]}, print, experiment="a b", root=root, display=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_attempts_are_found_in_the_order_of_their_numbers(tmp_path):
    for name in ("attempt-10.jsonl", "attempt-2.jsonl", "attempt-0.jsonl", "attempt-x.jsonl", "run.json"):
        (tmp_path / name).touch()

    found = files.journals_by_attempt(tmp_path)

    assert found == {2: f"{tmp_path}/attempt-2.jsonl", 10: f"{tmp_path}/attempt-10.jsonl"}
    assert list(found) == [2, 10]


@pytest.mark.parametrize(
    ("missing", "hint"),
    [
        ("runs/swep", "did you mean 'runs/sweep'?"),
        ("rns/sweep/3", "did you mean 'runs/sweep/3'?"),
        ("runs/quite-another", ""),
        (".git", ""),
    ],
)
def test_the_path_that_was_meant_is_asked_for(tmp_path, monkeypatch, missing, hint):
    monkeypatch.chdir(tmp_path)
    Path("runs/sweep").mkdir(parents=True)
    Path(".got").mkdir()

    assert nearest(Path(missing)) == hint


def test_an_experiment_whose_name_differs_from_anothers_in_case_alone_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "adam").mkdir(parents=True)
    check_experiment("runs", "adam")

    with pytest.raises(
        GridError, match=r"^experiments 'Adam' and 'adam' in runs differ in case alone: write one"
    ):
        check_experiment("runs", "Adam")


def test_no_runs_folder_ends_with_a_dot_which_windows_cuts_off():
    assert files.run_folder(1, {"note": "v1."}) == "001-note=v1"
