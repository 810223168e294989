import json
import re
import shutil

import pytest

from runmanager import IntRange, RunBuilder, Uniform, run_grid
from runmanager.storage.design import Design
from runmanager.storage.folders import Experiment

GRID = {"lr": [0.1, 0.2], "device": ["cpu"], "seed": [1, 2, 3, 4]}


def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            if run.lr == 0.1 and run.seed == 4:
                raise ValueError("no")
            manager.track(kl=run.lr + 0.01 * run.seed + 0.001 * (run.seed % 3) + getattr(run, "dropout", 0.0))


def train_again(run, manager):
    train(run, manager)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two experiments with the goal min:kl, which differ in the dropout and the training function."""
    root = tmp_path_factory.mktemp("runs")
    options = {"root": root, "executor": "inline", "tensorboard": False, "display": False}
    run_grid(GRID, train, experiment="a", goal="min:kl", repeats="seed", **options)
    run_grid({**GRID, "dropout": [0.5]}, train_again, experiment="b", goal="min:kl", repeats="seed", **options)
    return root


def lines_of(result):
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines()]


@pytest.mark.slow(everywhere=True)
def test_best_ranks_settings_by_the_goal_and_names_failed_repeats(command, root):
    lines = lines_of(command("best", root / "a"))

    assert lines[0] == ["lr", "kl", "95", "%", "interval", "repeats"]
    assert lines[1][0] == "0.1"
    assert lines[1][-5:] == ["3", "of", "4,", "1", "failed"]
    assert lines[2][0] == "0.2"
    assert lines[2][-1] == "4"


@pytest.mark.slow(everywhere=True)
def test_best_takes_another_metric_direction_and_axis(command, root):
    rows = json.loads(command("best", root / "a", "--goal", "max:kl", "--json").stdout)
    folded = json.loads(command("best", root / "a", "--repeats", "lr", "--json").stdout)

    assert [row["lr"] for row in rows] == [0.2, 0.1]
    assert [(row["seed"], row["all repeats"]) for row in folded] == [(1, 2), (2, 2), (3, 2), (4, 2)]


def test_compare_says_what_it_compares_and_which_pairs_it_left_out(command, root):
    result = command("compare", "lr", root / "a")

    assert "kl of runs that differ in lr only" in result.output
    assert "(mean of 3 pairs)" in result.output
    assert "1 pair is left out: 1 with a failed run" in result.output


def test_compare_takes_the_axis_behind_the_folders_too(command, root):
    for folders, axis in (([root / "a"], "lr"), ([root / "a", root / "b"], "experiment")):
        swapped = command("compare", *folders, axis, "--json")

        assert swapped.exit_code == 0
        assert swapped.stdout == command("compare", axis, *folders, "--json").stdout
    assert "did you mean" in command("compare", "lr", root / "aa").output


def test_experiments_are_compared_pair_by_pair(command, root):
    rows = json.loads(command("compare", "experiment", root / "a", root / "b", "--json").stdout)

    assert len(rows) == 7
    assert {round(row["b vs a"], 9) for row in rows} == {0.5}


def test_diff_sets_experiments_side_by_side(command, root):
    rows = json.loads(command("diff", root / "a", root / "b", "--json").stdout)
    by_name = {(row["what"], row["name"]): row for row in rows}

    assert by_name["parameter", "dropout"]["second"] == "0.5"
    assert by_name["code", "train_again"]["second"] == "changed"
    assert by_name["metric", "kl, leading setting"]["difference"] == pytest.approx(0.5)
    assert by_name["metric", "kl, mean of 7 pairs"]["difference"] == pytest.approx(0.5)
    assert by_name["metric", "kl, mean of 7 pairs"]["note"] == "1 pair left out"
    assert ("parameter", "lr") not in by_name  # the same in both


def test_diff_sets_runs_side_by_side_in_the_order_given(command, root):
    rows = json.loads(command("diff", root / "a/5", root / "b/1", "--json").stdout)
    by_name = {(row["what"], row["name"]): row for row in rows}

    assert [by_name["parameter", "lr"][side] for side in ("first", "second")] == ["0.2", "0.1"]
    assert by_name["metric", "kl"]["difference"] == pytest.approx(0.4)


def test_diff_prints_a_table_and_says_when_nothing_differs(command, root):
    assert ["parameter", "lr", "0.2", "0.1"] in lines_of(command("diff", root / "a/5", root / "a/1"))
    assert "nothing differs" in command("diff", root / "a", root / "a").output


@pytest.mark.slow(everywhere=True)
def test_diff_has_both_sides_and_whole_words_in_a_narrow_terminal(root, terminal, tmp_path, monkeypatch):
    shutil.copytree(root / "a", tmp_path / "first")
    shutil.copytree(root / "b", tmp_path / "second")
    note = "does a larger batch need a larger learning rate,\n\nas others say?"
    Experiment(tmp_path / "first").decide(Design(note=note))
    monkeypatch.chdir(tmp_path)

    for width in (60, 80, 100):
        lines, _ = terminal(width, "diff", "first", "second")

        heading = next(line for line in lines if line.startswith("what"))
        assert heading.split() == ["what", "name", "first", "second", "difference", "note"]
        assert max(map(len, lines)) <= width
        assert not [line for line in lines if "…" in line or "not shown" in line]
        assert {word for line in lines for word in line.split()} >= {*note.split(), "0.5", "train_again"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "nope"), "is no run"),
        (("a/99", "b/1"), "has no run '99'"),
        ((".", "a"), "has several experiments: give one of them, a, b"),
    ],
)
def test_diff_asks_for_two_experiments_or_runs(command, root, arguments, message):
    result = command("diff", *(root / argument for argument in arguments))

    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_decide_says_what_the_repeats_have_decided(command, root):
    result = command("decide", "lr", root / "a")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == (
        "lr=0.1 leads lr=0.2, but 3 seeds do not decide it: lr=0.1 is ahead by 0.1 in each, to the last "
        "digit; one more seed is needed, which changes the results; lr=0.1 lost 1 of 4 seeds (failed)"
    )
    assert "equal values of lr could be swapped" in result.stderr
    assert "lr" in result.stdout.splitlines()[1]


def test_decide_takes_settings_experiments_and_json(command, root):
    settings = json.loads(command("decide", root / "a", "--json").stdout)
    between = json.loads(command("decide", "experiment", root / "a", root / "b", "--json").stdout)

    assert (settings["better"], settings["decided"], settings["repeats"]) == ({"lr": 0.1}, False, 3)
    assert [row["lr"] for row in settings["table"]] == [0.1, 0.2]
    assert (between["better"], between["outcome"]) == ("a", "undecided")


def test_decide_tells_folders_from_axes(command, root, monkeypatch):
    several = json.loads(command("decide", root / "a", root / "b", "--json").stdout)
    monkeypatch.chdir(root.parent)
    nested = command("decide", "opt.lr")

    assert {row["lr"] for row in several["table"]} == {0.1, 0.2}
    assert "no results at 'runs'" in nested.stderr  # not at 'opt.lr'


def test_decide_refuses_what_there_is_not(command, root):
    result = command("decide", "lear", root / "a", "--margin", "-1")

    assert result.exit_code == 2
    assert "margin must be a number above 0, or None, got -1.0" in result.stderr
    assert "no hyperparameter 'lear'" in result.stderr


def test_several_metrics_list_what_no_other_beats(command, root):
    both = ("--goal", "max:kl", "--goal", "min:run duration")
    rows = json.loads(command("best", root / "a", *both, "--json").stdout)
    result = command("best", root / "a", *both)

    assert rows[0]["lr"] == 0.2
    assert all(row["run duration mean"] < rows[0]["run duration mean"] for row in rows[1:])

    assert re.search(
        r"kl is the first of 2 goals; (?:\d settings are on the Pareto front: |no other setting is better)",
        result.output,
    )


def test_a_page_of_several_metrics_has_their_front(command, root, tmp_path):
    both = ("--goal", "max:kl", "--goal", "min:run duration")
    result = command("report", root / "a", *both, "-o", tmp_path / "page.html")

    assert result.exit_code == 0, result.output
    assert "kl and run duration" in (tmp_path / "page.html").read_text()


@pytest.mark.slow(everywhere=True)
def test_a_comparison_of_a_sample_names_importances(command, tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(kl=(run.height - 0.3) ** 2, same=run.width and 1)

    runs = RunBuilder.sample({"height": Uniform(-1, 1), "width": IntRange(1, 64)}, 20, seed=0)
    quiet = {"root": tmp_path, "executor": "inline", "tensorboard": False, "display": False}
    run_grid(runs, train, experiment="a", goal="min:kl", **quiet)

    compared = command("compare", "height", tmp_path / "a")

    assert compared.exit_code == 2
    assert "no two completed runs differ in height alone: importances() says what matters" in compared.output
