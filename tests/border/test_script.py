"""A script with flags: `main` (docs/your-script.md)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runmanager import (
    IntRange,
    InvalidArgumentError,
    LogUniform,
    OptunaSearch,
    RunBuilder,
    Uniform,
    load_runs,
    main,
)
from tests.border.screens import command, terminal

GRID: dict[str, Any] = {
    "lr": [0.1, 0.2], "width": [8], "name": ["a"], "deep": [True, False], "kind": [int, float],
}  # fmt: skip
RANGES: dict[str, Any] = {"lr": LogUniform(1e-5, 1e-1), "width": IntRange(8, 64), "kind": ["a", "b"]}


class Train:
    """Notes what it is called with."""

    def __init__(self):
        self.calls, self.runs = [], []

    def __call__(self, run, manager, num_epochs=2, seed=0, data_dir="data"):
        self.calls.append((run, num_epochs, seed, data_dir))
        self.runs.append(run)
        with manager.run(run):
            for _ in manager.epochs(num_epochs):
                manager.track_loss(run.lr, 1)


def start(tmp_path, words, train=None, grid=None, **options):
    options = {"tensorboard": False, "constants": ["data_dir"], "executor": "inline", **options}
    arguments = [*words.split(), "--root", str(tmp_path), "--experiment", "e"]
    return main(grid or {"lr": [0.1, 0.2]}, train or Train(), arguments=arguments, **options)


def test_without_flags_the_grid_is_executed_with_the_defaults(tmp_path):
    train = Train()

    assert start(tmp_path, "", train) == 0

    assert [(run.lr, *others) for run, *others in train.calls] == [(0.1, 2, 0, "data"), (0.2, 2, 0, "data")]
    assert "num_epochs" not in load_runs(tmp_path)


def test_values_of_flags_replace_those_of_the_grid_and_keep_their_types(tmp_path):
    train = Train()

    assert start(tmp_path, "--lr 1 0.5 --width 4 --name b c --deep false --kind float", train, GRID) == 0

    assert [run.lr for run in train.runs] == [1, 1, 0.5, 0.5]
    assert {(run.width, run.deep, run.kind) for run in train.runs} == {(4, False, float)}
    assert [run.name for run in train.runs] == ["b", "c", "b", "c"]


def test_an_axis_of_a_nested_mapping_has_a_dotted_flag(tmp_path):
    train, grid = Train(), {"opt": {"rate": [1, 2], "weight_decay": [0.1]}, "lr": [0.1]}

    assert start(tmp_path, "--opt.rate 3 4 --opt.weight-decay 0.5", train, grid) == 0

    assert [(run.opt.rate, run.opt.weight_decay) for run in train.runs] == [(3, 0.5), (4, 0.5)]
    assert load_runs(tmp_path)["opt.rate"].tolist() == [3, 4]


def test_a_paired_axis_has_no_flag_and_keeps_its_values(tmp_path):
    train, pairs = Train(), {("lr", "seed"): [(0.1, 1), (0.2, 2)]}

    assert start(tmp_path, "--width 4", train, {**pairs, "width": [8]}) == 0

    assert train.runs == RunBuilder.get_runs({**pairs, "width": [4]})
    for constants in ([], ["seed"]):
        with pytest.raises(SystemExit):
            start(tmp_path, "--seed 5", train, pairs, constants=constants)


def test_a_parameter_of_train_becomes_an_axis_and_a_column_when_given_and_a_constant_does_not(tmp_path):
    train = Train()

    assert start(tmp_path, "--lr 0.1 --num-epochs 1 3 --seed 5 --data-dir elsewhere", train) == 0

    assert [others for _, *others in train.calls] == [[1, 5, "elsewhere"], [3, 5, "elsewhere"]]
    runs = load_runs(tmp_path)
    assert runs[["num_epochs", "seed", "epochs"]].values.tolist() == [[1, 5, 1], [3, 5, 3]]
    assert "data_dir" not in runs  # a constant


def test_repeats_are_those_that_are_axes(tmp_path):
    assert start(tmp_path, "--lr 0.1 --seed 1 2", repeats=("seed", "fold")) == 0

    assert load_runs(tmp_path).attrs["repeats"] == {"e": ["seed"]}


def test_all_wrong_values_are_named_at_once_and_nothing_is_written(tmp_path, capsys):
    words = "--lr x 0.1 y --width 2.5 --deep yes --kind str --num-epochs half"

    assert start(tmp_path / "runs", words, grid=GRID) == 2

    errors = capsys.readouterr().err
    for flag, word in (
        ("lr", "x"), ("lr", "y"), ("width", "2.5"), ("deep", "yes"), ("kind", "str"), ("num-epochs", "half")
    ):  # fmt: skip
        assert re.search(f"--{flag} must be .*, got '{word}'", errors)
    assert not (tmp_path / "runs").exists()


def test_flags_of_run_grid_replace_the_scripts_own(tmp_path):
    train = Train()

    assert start(tmp_path, "--plan", train) == 0
    assert (train.calls, list(tmp_path.iterdir())) == ([], [])
    assert start(tmp_path, "--only 2", train, jobs=3) == 0
    assert [run.lr for run in train.runs] == [0.2]
    assert start(tmp_path, "--max-seconds 100 --note why --on-error stop --jobs 1") == 0
    assert json.loads((tmp_path / "e" / "grid.json").read_text())["note"] == "why"


def failing(run, manager):
    with manager.run(run):
        raise ValueError("no")


def stopped(run, manager):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "train", "code"),
    [("", failing, 1), ("--jobs 0", failing, 2), ("", stopped, 130), ("--max-seconds 0.000001", Train(), 75)],
)
def test_the_exit_code_says_how_the_grid_ended(tmp_path, words, train, code):
    constants = ["data_dir"] if isinstance(train, Train) else []

    assert start(tmp_path, words, train, constants=constants) == code


def test_help_lists_axes_settings_options_and_defaults_in_80_columns():
    options: dict[str, Any] = {"jobs": 4, "on_error": "stop", "executor": "inline"}
    with terminal(80) as screen, pytest.raises(SystemExit) as ended:
        main(GRID, Train(), arguments=["--help"], help={"lr": "100 % of it"}, **options)

    assert ended.value.code == 0
    for part in (
        "--lr X [X ...] 100 % of it (default: 0.1 0.2)", "--num-epochs X [X ...] (default: 2)", "--data-dir X",
        "(default: 4)", "(default: stop)",
    ):  # fmt: skip
        assert part in screen.text
    assert max(map(len, screen.lines)) <= 80


def test_the_root_of_a_script_counts_unless_another_is_given_and_a_file_is_refused(own_folder, capsys):
    options: dict[str, Any] = {"experiment": "e", "root": "own", "executor": "inline", "tensorboard": False}
    Path("file").touch()

    codes = [main({"lr": [0.1]}, Train(), arguments=words, **options) for words in ([], ["--root", "other"])]

    assert codes == [0, 0]
    assert Path("own/e").is_dir()
    assert Path("other/e").is_dir()
    assert main({"lr": [0.1]}, Train(), arguments=["--root", "file"], **options) == 2
    assert "file" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "flag"), [("--lrr=0.1 --zz 2", "--lr"), ("--retry", "--retry-failed")])
def test_an_unknown_flag_or_the_beginning_of_one_is_refused_with_a_similar_one(tmp_path, capsys, words, flag):
    with pytest.raises(SystemExit) as ended:
        start(tmp_path, words)

    assert ended.value.code == 2
    assert f"{words}; did you mean {flag}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"constants": ["x"]}, "'x'"),
        ({"grid": {"sample": [1, 2]}}, "--sample: .*rename the axis"),
        ({"grid": {"help": [1, 2]}}, "--help: .*rename the axis"),
    ],
)
def test_a_mistake_of_the_script_is_raised(tmp_path, options, named):
    with pytest.raises(InvalidArgumentError, match=named):
        start(tmp_path, "", **options)


def test_a_range_is_sampled_and_a_larger_sample_executes_only_the_new_runs(tmp_path):
    train = Train()

    assert start(tmp_path, "--sample 3", train, RANGES) == 0
    assert start(tmp_path, "--sample 5", train, RANGES) == 0

    assert train.runs == RunBuilder.sample(RANGES, 5, seed=0)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("--lr 0.2 0.3 --width 16..17 --sample 8", {(0.2, 16), (0.2, 17), (0.3, 16), (0.3, 17)}),
        ("--lr 0.2 --width 16 32", {(0.2, 16), (0.2, 32)}),
    ],
)
def test_values_or_another_range_replace_a_range(tmp_path, words, settings):
    train = Train()

    assert start(tmp_path, words, train, RANGES) == 0

    assert {run[:2] for run in train.runs} == settings


@pytest.mark.parametrize("words", ["--shift -0.5..0.5", "--shift=-0.5..0.5", "--shift -1e-1 -.2 0.3"])
def test_negative_values_and_ranges_are_no_flags(tmp_path, words):
    train = Train()

    assert start(tmp_path, f"{words} --sample 3", train, {"lr": [0.1], "shift": Uniform(-1, 1)}) == 0

    assert all(-0.5 <= run.shift <= 0.5 for run in train.runs)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", ["lr", "width", "--sample"]),
        ("--sample 3 --lr x", ["--lr", "'x'"]),
        ("--sample 3 --lr 0..1", ["--lr", "'0..1'"]),
        ("--sample 3 --width 1..2.5", ["--width", "'1..2.5'"]),
        ("--sample 0", ["0"]),
    ],
)
def test_a_range_that_cannot_be_used_is_named(tmp_path, capsys, words, named):
    assert start(tmp_path, words, grid=RANGES) == 2

    errors = capsys.readouterr().err
    assert [name for name in named if name not in errors] == []
    assert not (tmp_path / "e").exists()


def test_a_search_is_continued_by_a_larger_number(tmp_path):
    train = Train()
    options = {"grid": RANGES, "search": OptunaSearch(n=3), "goal": "min:loss"}
    assert start(tmp_path, "", train, **options) == 0

    codes = [start(tmp_path, f"--suggest {number}", train, **options) for number in (4, 2, 0)]

    assert codes == [0, 0, 2]
    assert len(train.calls) == 4


def test_a_command_names_both_ways_to_execute_failed_runs_again(tmp_path, capsys):
    start(tmp_path, "", failing, constants=[])
    own = capsys.readouterr().out

    of_command = command("show", tmp_path / "e/1").out

    assert "add --retry-failed" in own
    assert "retry_failed=True" not in own
    assert "add retry_failed=True or --retry-failed" in of_command


@pytest.mark.parametrize(
    ("executor", "words", "recorded"),
    [
        ("lanes", ["--lr", "0.1", "--hf-token", "abc"], "train.py --lr 0.1 --hf-token ..."),
        ("inline", ["--api-key=def", "--tokens", "7"], "train.py --api-key=... --tokens 7"),
        ("inline", ["--pass", "ghi", "http://me:pw@host/x"], "train.py --pass ... http://...@host/x"),
    ],
)
def test_the_command_is_recorded_with_its_arguments_but_not_with_secrets(
    tmp_path, monkeypatch, executor, words, recorded
):
    monkeypatch.setattr("sys.argv", ["/home/me/train.py", *words])

    start(tmp_path, "", failing, constants=[], executor=executor)

    shown = command("show", tmp_path / "e/1").out
    assert f"{recorded}\n" in shown
    assert not {"abc", "def", "me:pw", "ghi"} & set(shown.split())
