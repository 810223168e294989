from collections.abc import Sequence
from typing import Any

import pytest

from runmanager import InlineExecutor, IntRange, LogUniform, OptunaSearch, RunBuilder, Uniform, load_runs, main
from runmanager.errors import InvalidArgumentError

GRID: dict[str, Sequence[Any]] = {
    "lr": [0.1, 0.2],
    "width": [8],
    "name": ["a"],
    "deep": [True, False],
    "kind": [int, float],
}


class Train:
    """Notes what it is called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, run, manager, num_epochs=2, seed=0, data_dir="data"):
        self.calls.append((run, num_epochs, seed, data_dir))
        with manager.run(run):
            for _ in manager.epochs(num_epochs):
                manager.track_loss(run.lr, 1)


def start(tmp_path, words, train=None, grid=None, **options):
    options = {"tensorboard": False, "constants": ["data_dir"], "executor": "inline", **options}
    arguments = [*words.split(), "--root", str(tmp_path), "--experiment", "e"]
    return main(grid or {"lr": [0.1, 0.2]}, train or Train(), arguments=arguments, **options)


@pytest.mark.slow(everywhere=True)
def test_without_flags_the_grid_is_executed_with_the_defaults(tmp_path):
    train = Train()

    assert start(tmp_path, "", train) == 0

    assert [(run.lr, *others) for run, *others in train.calls] == [(0.1, 2, 0, "data"), (0.2, 2, 0, "data")]
    assert "num_epochs" not in load_runs(tmp_path)


@pytest.mark.slow
def test_values_that_are_given_take_the_place_of_the_grids_own(tmp_path):
    train = Train()

    assert start(tmp_path, "--lr 1 0.5 --width 4 --name b c --deep false --kind float", train, GRID) == 0

    runs = [call[0] for call in train.calls]
    assert [run.lr for run in runs] == [1, 1, 0.5, 0.5]
    assert {(run.width, run.deep, run.kind) for run in runs} == {(4, False, float)}
    assert [run.name for run in runs] == ["b", "c", "b", "c"]


@pytest.mark.slow
def test_an_axis_of_a_nested_mapping_has_a_dotted_flag(tmp_path):
    train, grid = Train(), {"opt": {"rate": [1, 2], "weight_decay": [0.1], "_target_": ["sgd"]}, "lr": [0.1]}

    assert start(tmp_path, "--opt.rate 3 4 --opt.weight-decay 0.5 --opt.target adam", train, grid) == 0

    runs = [call[0] for call in train.calls]
    assert [(run.opt.rate, run.opt.weight_decay, run.opt._target_) for run in runs] == [
        (3, 0.5, "adam"), (4, 0.5, "adam"),
    ]  # fmt: skip
    assert load_runs(tmp_path)["opt.rate"].tolist() == [3, 4]


def test_a_setting_that_is_given_is_an_axis_and_a_column(tmp_path):
    train = Train()

    assert start(tmp_path, "--lr 0.1 --num-epochs 1 3 --seed 5", train) == 0

    assert [others for _, *others in train.calls] == [[1, 5, "data"], [3, 5, "data"]]
    runs = load_runs(tmp_path)
    assert runs[["num_epochs", "seed", "epochs"]].to_numpy().tolist() == [[1, 5, 1], [3, 5, 3]]


def test_a_constant_is_no_hyperparameter(tmp_path):
    train, read = Train(), []

    def load(data_dir):
        read.append(data_dir)
        return "data"

    assert start(tmp_path, "--lr 0.1 --data-dir elsewhere", train, data=load) == 0

    assert train.calls[0][3] == "elsewhere"
    assert read == ["elsewhere"]
    assert "data_dir" not in load_runs(tmp_path)


@pytest.mark.slow(everywhere=True)
def test_repeats_are_those_that_are_axes(tmp_path):
    assert start(tmp_path, "--lr 0.1", repeats=("seed", "fold")) == 0
    assert load_runs(tmp_path).attrs["repeats"] == {}
    assert start(tmp_path, "--lr 0.1 --seed 1 2", repeats=("seed", "fold")) == 0
    assert load_runs(tmp_path).attrs["repeats"] == {"e": ["seed"]}


def test_everything_wrong_is_named_at_once_and_nothing_is_written(tmp_path, capsys):
    words = "--lr x -1 --width 2.5 --deep yes --kind str --num-epochs 0"
    allowed = {"lr": (lambda lr: lr > 0, "numbers above 0"), "num_epochs": (lambda n: n > 0, "numbers above 0")}

    assert start(tmp_path / "runs", words, grid=GRID, allowed=allowed) == 2

    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("--")[2] for line in lines[1:7]] == [
        "lr takes numbers above 0, got 'x'",
        "lr takes numbers above 0, got '-1'",
        "width takes whole numbers, got '2.5'",
        "deep takes one of true, false, got 'yes'",
        "kind takes one of int, float, got 'str'",
        "num-epochs takes numbers above 0, got '0'",
    ]
    assert len(lines) == 7
    assert not (tmp_path / "runs").exists()


def test_flags_of_run_grid_take_the_place_of_the_scripts_own(tmp_path, capsys):
    train = Train()

    assert start(tmp_path, "--plan", train) == 0
    assert train.calls == []
    assert start(tmp_path, "--only 2", train, jobs=3) == 0
    assert [call[0].lr for call in train.calls] == [0.2]
    assert start(tmp_path, "--max-seconds 100 --note why --on-error stop") == 0
    assert load_runs(tmp_path).attrs["notes"] == {"e": "why"}
    capsys.readouterr()


@pytest.mark.slow
def test_failures_are_exit_codes(tmp_path, capsys):
    def fail(run, manager):
        with manager.run(run):
            raise ValueError("no")

    assert start(tmp_path, "", fail, constants=[]) == 1
    (tmp_path / "file").touch()
    assert start(tmp_path / "file", "", fail, constants=[]) == 2
    assert "is a file" in capsys.readouterr().err


def test_help_lists_axes_settings_and_defaults(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        start(tmp_path, "--help", grid=GRID, help={"lr": "100 % of it"}, flags={"num_epochs": "--epochs"})

    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--lr X [X ...] 100 % of it (default: 0.1 0.2)" in shown
    assert "--epochs X [X ...] (default: 2)" in shown
    assert "--data-dir X (default: data)" in shown


def test_help_fits_a_terminal_and_shows_the_scripts_own_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    options: dict[str, Any] = {"jobs": 4, "on_error": "stop", "root": "elsewhere", "executor": InlineExecutor()}
    with pytest.raises(SystemExit):
        main(GRID, Train(), arguments=["--help"], **options)

    lines = capsys.readouterr().out.splitlines()
    shown = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80
    for default in ("4", "stop", "elsewhere", "InlineExecutor"):
        assert f"(default: {default})" in shown


@pytest.mark.parametrize(("words", "folder"), [("", "own"), ("--root other", "other")])
def test_the_root_of_a_script_counts_unless_another_is_given(tmp_path, monkeypatch, words, folder):
    monkeypatch.chdir(tmp_path)

    assert (
        main({"lr": [0.1]}, Train(), arguments=words.split(), experiment="e", root="own", executor="inline")
        == 0
    )

    assert (tmp_path / folder / "e").is_dir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed": {"lrr": (bool, "")}}, "allowed= has 'lrr', which is no axis and no parameter of train"),
        ({"help": {"x": ""}}, "help= has 'x', which is no axis"),
        ({"constants": ["x"]}, "constants= has 'x', which is no axis"),
        ({"grid": {"seed": [1]}}, "'seed' is an axis and a parameter of train: leave one out"),
    ],
)
def test_what_the_script_got_wrong_is_raised(tmp_path, options, message):
    with pytest.raises(InvalidArgumentError) as raised:
        start(tmp_path, "", **options)

    assert message in str(raised.value)


def test_a_parameter_of_train_has_the_value_of_the_run_in_any_grid(tmp_path):
    train = Train()

    assert start(tmp_path, "", train, {"lr": [0.1]}) == 0
    from runmanager import run_grid

    run_grid({"lr": [0.3], "num_epochs": [4]}, train, experiment="f", root=tmp_path, executor="inline")
    assert train.calls[-1][1] == 4


RANGES = {"lr": LogUniform(1e-5, 1e-1), "width": IntRange(8, 64), "kind": ["a", "b"]}


@pytest.mark.slow
def test_a_range_is_sampled_and_more_runs_keep_the_former_ones(tmp_path):
    train = Train()

    assert start(tmp_path, "--sample 3", train, RANGES) == 0
    assert start(tmp_path, "--sample 5", train, RANGES) == 0

    assert [call[0] for call in train.calls] == RunBuilder.sample(RANGES, 5, seed=0)


@pytest.mark.slow
def test_values_or_another_range_take_the_place_of_a_range(tmp_path):
    train = Train()

    assert start(tmp_path, "--lr 0.2 0.3 --width 16..17 --sample 8", train, RANGES) == 0

    assert {call[0][:2] for call in train.calls} == {(0.2, 16), (0.2, 17), (0.3, 16), (0.3, 17)}


@pytest.mark.slow
def test_values_alone_make_a_grid_of_ranges(tmp_path):
    train = Train()

    assert start(tmp_path, "--lr 0.2 --width 16 32", train, RANGES) == 0

    assert len(train.calls) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "lr, width: a range cannot be expanded, draw runs with --sample 50, or write values: --lr X"),
        ("--sample 3 --lr x", "--lr takes numbers, or a range as 1e-05..0.1, got 'x'"),
        ("--sample 3 --lr 0..1", "--lr takes numbers, or a range as 1e-05..0.1, got '0..1'"),
        ("--sample 3 --width 1..2.5", "--width takes whole numbers, or a range as 8..64, got '1..2.5'"),
        ("--sample 3 --width 1..2 7", "values of 'width' have a range among them"),
        ("--sample 0", "n must be a whole number, 1 or more, got 0"),
    ],
)
def test_a_range_that_cannot_be_used_is_named(tmp_path, capsys, words, message):
    assert start(tmp_path, words, grid=RANGES) == 2

    assert message in capsys.readouterr().err
    assert not (tmp_path / "e").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--shift -0.5..0.5", "--shift=-0.5..0.5", "--shift -1e-1 -.2 0.3"])
def test_negative_values_and_ranges_are_no_flags(tmp_path, words):
    train = Train()

    assert start(tmp_path, f"{words} --sample 3", train, {"lr": [0.1], "shift": Uniform(-1, 1)}) == 0

    assert {-0.5 <= call[0].shift <= 0.5 for call in train.calls} == {True}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--batchsize 100", "--batch-size"),
        ("--lrr=0.1 --jobs 2", "--lr"),
        ("--retryfailed", "--retry-failed"),
    ],
)
def test_the_flag_that_was_meant_is_asked_for(tmp_path, capsys, words, meant):
    with pytest.raises(SystemExit) as exit_:
        start(tmp_path, words, grid={"lr": [0.1], "batch_size": [10]})

    assert exit_.value.code == 2
    assert f"; did you mean '{meant}'?" in capsys.readouterr().err


def test_a_part_of_a_flag_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        start(tmp_path, "--not 5")  # is no --note

    assert "unrecognized arguments: --not 5" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(4, 0), (2, 0), (0, 2)])
def test_a_search_is_continued_with_more_runs(tmp_path, number, code):
    train = Train()
    options = {"grid": RANGES, "search": OptunaSearch(n=3), "goal": "min:loss"}
    assert start(tmp_path, "", train, **options) == 0

    assert start(tmp_path, f"--suggest {number}", train, **options) == code

    assert len(train.calls) == max(number, 3)
    with pytest.raises(SystemExit):
        start(tmp_path, "--sample 3", train, **options)


def test_help_shows_a_range_as_it_is_written(capsys):
    with pytest.raises(SystemExit):
        main(RANGES, Train(), arguments=["--help"])

    shown = " ".join(capsys.readouterr().out.split())
    assert "--lr X [X ...] (default: LogUniform(1e-05, 0.1))" in shown
    assert "--sample N draw N runs of the grid at random" in shown
