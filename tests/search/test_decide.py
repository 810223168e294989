"""Grids whose runs are repeated until it is decided, where it is clear before how good each setting is."""

import json
from html import escape
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from runmanager import (
    Decide,
    GridError,
    InvalidArgumentError,
    export,
    load_runs,
    load_table,
    run_grid,
    show,
    verdict,
    write_report,
)
from runmanager.cli.app import app
from tests.damaging import as_if_killed
from tests.report.reading import by_id, parse, text_of

ADAM_OR_SGD = {"optimizer": ["adam", "sgd"], "device": ["cpu"]}


class Train:
    """Track a score: that of the optimizer, and noise that follows from the seed.

    Args:
        scores: optimizer -> its mean score.
        noise: The standard deviation within a setting.
        faults: (optimizer, seed) -> what is raised.
    """

    def __init__(self, scores, noise=0.01, faults=None):
        self.scores, self.noise, self.faults = scores, noise, faults or {}
        self.executed = []

    def __call__(self, run, manager):
        generator = torch.Generator().manual_seed(1000 * run.seed + list(self.scores).index(run.optimizer))
        noise = self.noise * torch.randn((), generator=generator).item()
        self.executed.append((run.optimizer, run.seed))
        with manager.run(run, nn.Linear(1, 1)):
            for _ in manager.epochs(2):
                if fault := self.faults.get((run.optimizer, run.seed)):
                    raise fault
                manager.track(score=self.scores[run.optimizer] + getattr(run, "width", 0) + noise)


@pytest.fixture
def start(tmp_path):
    """Start a grid under tmp_path."""

    def run(train, params=ADAM_OR_SGD, **options):
        quiet: dict[str, Any] = {
            "tensorboard": False,
            "display": False,
            "executor": "inline",
            "decide": Decide(),
        }
        usual = {"repeats": "seed", "goal": "max:score", "experiment": "exp"}
        return run_grid(params, train, root=tmp_path, **quiet | usual | options)

    return run


def repeats(root, axis="optimizer"):
    """Return how many completed repeats each rival has."""
    runs = load_runs(root)
    return runs[runs["status"] == "completed"].groupby(axis).size().to_dict()


def test_a_clear_difference_takes_the_fewest_repeats_that_can_decide(start, tmp_path):
    train = Train({"adam": 0.9, "sgd": 0.8})

    outcome = start(train)

    assert train.executed == [(optimizer, seed) for seed in range(6) for optimizer in ("adam", "sgd")]
    assert outcome.exit_code == 0
    assert outcome.runs["status"].tolist() == ["completed"] * 12
    assert str(verdict(load_runs(tmp_path))).startswith("optimizer=adam is better than optimizer=sgd by 0.0")


@pytest.mark.slow(everywhere=True)
def test_repeats_that_were_not_asked_for_leave_no_trace(start, tmp_path):
    outcome = start(Train({"adam": 0.9, "sgd": 0.8}))

    assert len(outcome.outcomes) == len(load_runs(tmp_path)) == 12
    assert load_runs(tmp_path)["run"].tolist() == list(range(1, 13))


@pytest.mark.slow(everywhere=True)
def test_only_the_undecided_ones_get_more_repeats(start, tmp_path):
    outcome = start(
        Train({"adam": 0.83, "rmsprop": 0.82, "sgd": 0.2}),
        {"optimizer": ["adam", "rmsprop", "sgd"]}, decide=Decide(max_repeats=40),
    )  # fmt: skip

    numbers = repeats(tmp_path)
    assert numbers["sgd"] == 7
    assert 7 < numbers["adam"] == numbers["rmsprop"] <= 40
    assert outcome.exit_code == 0
    assert verdict(load_runs(tmp_path)).better == {"optimizer": "adam"}


@pytest.mark.slow(everywhere=True)
def test_what_is_decided_is_not_repeated_again(start):
    start(Train({"adam": 0.9, "sgd": 0.8}))
    again = Train({"adam": 0.9, "sgd": 0.8})

    outcome = start(again)

    assert again.executed == []
    assert len(outcome.outcomes) == 12


@pytest.mark.slow(everywhere=True)
def test_equal_settings_spend_the_budget_and_a_larger_one_goes_on(start, tmp_path, capsys):
    train = Train({"adam": 0.8, "sgd": 0.8})

    start(train, decide=Decide(max_repeats=7), display=None)

    assert repeats(tmp_path) == {"adam": 7, "sgd": 7}
    assert "! undecided after all 7 repeats: a larger max_repeats= continues" in capsys.readouterr().out
    more = Train({"adam": 0.8, "sgd": 0.8})
    start(more, decide=Decide(max_repeats=9))
    assert more.executed == [("adam", 7), ("sgd", 7), ("adam", 8), ("sgd", 8)]


def test_the_budget_may_be_seconds_of_training(start, tmp_path):
    start(Train({"adam": 0.8, "sgd": 0.8}), decide=Decide(max_seconds=1e-6))

    assert repeats(tmp_path) == {"adam": 6, "sgd": 6}


@pytest.mark.slow(everywhere=True)
def test_settings_whose_difference_does_not_matter_are_equal(start, tmp_path):
    start(Train({"adam": 0.8, "sgd": 0.8001}), decide=Decide(margin=0.05))

    assert verdict(load_runs(tmp_path), margin=0.05).outcome == "equal"
    assert repeats(tmp_path)["adam"] < 20


@pytest.mark.slow(everywhere=True)
def test_identical_settings_are_not_repeated_further(start, tmp_path):
    start(Train({"adam": 0.8, "sgd": 0.8}, noise=0))

    assert repeats(tmp_path) == {"adam": 6, "sgd": 6}
    assert "identical" in str(verdict(load_runs(tmp_path)))


@pytest.mark.slow(everywhere=True)
def test_a_seed_that_changes_nothing_is_named_and_ends_the_repeats(start, tmp_path, caplog):
    with caplog.at_level("INFO", "runmanager"):
        start(Train({"adam": 0.9, "sgd": 0.8}, noise=0))

    assert repeats(tmp_path) == {"adam": 6, "sgd": 6}
    assert lines_of(caplog, "change nothing", "undecided after") == [
        (
            "! seed seems to change nothing, as each setting has the same score in all its repeats: "
            "does train() use run.seed?"
        )
    ]


@pytest.mark.slow(everywhere=True)
def test_an_axis_is_decided_over_all_other_settings(start, tmp_path):
    outcome = start(
        Train({"adam": 0.9, "sgd": 0.8}), {"optimizer": ["adam", "sgd"], "width": [0, 5]},
        decide=Decide(axis="optimizer"),
    )  # fmt: skip

    assert repeats(tmp_path) == {"adam": 12, "sgd": 12}
    assert verdict(outcome.runs, "optimizer").better == "adam"


def lines_of(caplog, *words):
    return [record.message for record in caplog.records if any(word in record.message for word in words)]


@pytest.mark.slow(everywhere=True)
@pytest.mark.nightly
def test_what_is_decided_about_an_axis_is_said_once_in_the_panel(start, caplog):
    grid = {"opt": {"name": ["adam"]}, "optimizer": ["adam", "sgd"], "width": [0, 0.005]}

    with caplog.at_level("INFO", "runmanager"):
        start(Train({"adam": 0.9, "sgd": 0.8}), grid, decide=Decide(axis="optimizer"))

    (panel,) = lines_of(caplog, "is better than")
    assert panel.count("✓ adam is better than sgd by 0.095 (") == 1


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "faults", [{}, {(name, seed): ValueError() for name in ("adam", "sgd") for seed in range(6)}]
)
def test_a_goal_that_no_run_has_decides_nothing_and_ends_the_grid_in_order(start, tmp_path, caplog, faults):
    with caplog.at_level("INFO", "runmanager"):
        outcome = start(Train({"adam": 0.9, "sgd": 0.8}, faults=faults), goal="max:f2")

    assert len(outcome.runs) == 12
    assert outcome.panel is not None
    assert (tmp_path / "exp" / "results.csv").exists()
    assert lines_of(caplog, "! nothing is decided: ")


@pytest.mark.slow(everywhere=True)
def test_the_number_of_listed_repeats_is_no_matter_of_max_repeats(start, caplog):
    with caplog.at_level("INFO", "runmanager"):
        start(Train({"adam": 0.8, "sgd": 0.8}), {**ADAM_OR_SGD, "seed": [7]})
        start(Train({"adam": 0.8, "sgd": 0.8}), decide=Decide(max_repeats=2))

    assert lines_of(caplog, "until it is decided", "undecided after") == [
        "1 repeat (seed) of 2 settings, until it is decided",
        "! undecided after the only repeat: more values of seed continue",
        "2 repeats (seed) of 2 settings, until it is decided",
        "! undecided after all 2 repeats: a larger max_repeats= continues",
    ]


def test_listed_repeats_run_out(start, tmp_path):
    start(Train({"adam": 0.8, "sgd": 0.8}), {**ADAM_OR_SGD, "seed": [7, 5, 3]})

    assert load_runs(tmp_path)["seed"].tolist() == [7, 7, 5, 5, 3, 3]


@pytest.mark.slow(everywhere=True)
def test_a_rival_that_loses_all_its_repeats_gets_no_more(start, tmp_path):
    faults = {("sgd", seed): ValueError("no") for seed in range(40)}

    outcome = start(Train({"adam": 0.9, "sgd": 0.8, "rmsprop": 0.5}, faults=faults), {
        "optimizer": ["adam", "sgd", "rmsprop"]
    })  # fmt: skip

    assert outcome.exit_code == 1
    assert repeats(tmp_path) == {"adam": 7, "rmsprop": 7}
    assert "lost all 7 seeds (failed)" in str(verdict(load_runs(tmp_path)))


@pytest.mark.slow(everywhere=True)
def test_a_killed_grid_asks_for_the_same_repeats(start, tmp_path):
    scores = {"adam": 0.81, "rmsprop": 0.8, "sgd": 0.7}
    params = {"optimizer": list(scores)}
    start(Train(scores), params)
    undisturbed = load_runs(tmp_path)[["optimizer", "seed", "score"]]
    for folder in sorted((tmp_path / "exp").glob("0*"))[5::3]:
        as_if_killed(folder)

    again = Train(scores)
    start(again, params)

    assert 0 < len(again.executed) < len(undisturbed)
    assert load_runs(tmp_path)[["optimizer", "seed", "score"]].equals(undisturbed)


def test_a_plan_has_the_repeats_that_are_due(start, tmp_path):
    outcome = start(Train({"adam": 0.9, "sgd": 0.8}), plan_only=True)

    assert len(outcome.outcomes) == 12
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"repeats": None}, "decide= repeats over one axis: name it, as repeats='seed'; got repeats=None"),
        ({"repeats": ("fold", "seed")}, "decide= repeats over one axis: name it, as repeats='seed'; got"),
        ({"repeats": "optimizer", "decide": Decide("optimizer")}, "compares the axis that repeats='optimizer'"),
        ({"decide": Decide("optimiser")}, "decide= needs the axis 'optimiser' in every run; did you mean"),
        ({"decide": 5}, "decide must be Decide(...), or None to add no repeats, got 5"),
    ],
)
def test_what_cannot_be_decided_is_refused_before_anything_starts(start, tmp_path, options, problem):
    with pytest.raises(GridError) as caught:
        start(Train({"adam": 0.9, "sgd": 0.8}), **options)

    assert problem in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_all_bad_arguments_are_named_at_once():
    with pytest.raises(InvalidArgumentError) as caught:
        Decide(margin=-1, error=2, max_repeats=1, max_seconds="long")  # type: ignore[arg-type]

    assert [problem.partition(", got ")[0] for problem in caught.value.problems] == [
        "margin must be a number above 0, or None",
        "error must be a number between 0 and 1",
        "max_repeats must be a whole number, 2 or more",
        "max_seconds must be a number of seconds above 0",
    ]


ENDINGS = {
    "better": ({"adam": 0.9, "sgd": 0.8}, 0.01, Decide()),
    "the best of 3": ({"adam": 0.9, "sgd": 0.8, "rmsprop": 0.85}, 0.005, Decide()),
    "equal within 0.5": ({"adam": 0.9, "sgd": 0.9}, 0.01, Decide(margin=0.5)),
    "identical": ({"adam": 0.9, "sgd": 0.9}, 0.0, Decide()),
    "undecided": ({"adam": 0.9001, "sgd": 0.9}, 0.01, Decide(max_repeats=7)),
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_surface_begins_with_the_same_sentence(start, tmp_path, ending):
    scores, noise, decide = ENDINGS[ending]

    outcome = start(Train(scores, noise), {"optimizer": list(scores), "device": ["cpu"]}, decide=decide)

    sentence = str(verdict(outcome.runs))
    assert {"undecided": "do not decide it"}.get(ending, ending) in sentence
    first = sentence.partition(": ")[0]
    panel = " ".join(str(outcome.panel).split())
    assert first in panel
    assert escape(first) in outcome._repr_html_()
    page = parse(write_report(tmp_path / "exp", tmp_path / "report.html"))
    assert text_of(by_id(page, "headline")) == first
    decided = CliRunner().invoke(app, ["decide", str(tmp_path / "exp")])
    assert decided.stdout.splitlines()[0] == sentence
    highest = " has the highest score: "
    said = {"undecided": highest, "identical": "Each has ", "equal within 0.5": highest}.get(
        ending, " is best: "
    )
    assert said in text_of(by_id(page, "lead")).partition(". ")[0]
    assert said in panel


@pytest.mark.slow(everywhere=True)
def test_the_axis_the_margin_and_the_error_of_a_decision_are_those_of_its_verdict(start, tmp_path):
    grid = {"optimizer": ["adam", "sgd"], "width": [1, 2], "device": ["cpu"]}
    train = Train({"adam": 0.9, "sgd": 0.9})
    start(train, grid, decide=Decide("optimizer", margin=0.5, error=0.1))

    runs = load_runs(tmp_path)
    export(runs, tmp_path / "runs.csv")

    decision = verdict(runs)
    assert decision.outcome == "equal"
    assert {decision.better, decision.worse} == {"adam", "sgd"}
    assert "at most 10 %" in decision.assumptions
    assert str(verdict(load_table(tmp_path / "runs.csv"))) == decision.sentence
    assert verdict(runs, margin=1e-9).outcome == "undecided"
    assert "at most 5 %" in verdict(runs, error=0.05).assumptions
    assert set(verdict(runs, "setting").better) == {"optimizer", "width"}
    assert verdict(runs, "width").outcome != "equal"
    assert verdict(runs, goal="min:run duration").outcome != "equal"  # the margin is of another metric
    assert "equal within 0.5" in show(runs).caption


@pytest.mark.slow(everywhere=True)
def test_a_table_of_experiments_that_decide_differently_has_no_rule(start, tmp_path):
    train = Train({"adam": 0.9, "sgd": 0.9})
    start(train, decide=Decide(margin=0.5))
    start(train, decide=Decide(margin=0.4), experiment="other")

    assert str(verdict(load_runs(tmp_path / "exp"))).count("equal within 0.5")
    assert verdict(load_runs(tmp_path), "optimizer").outcome == "undecided"


@pytest.mark.slow(everywhere=True)
def test_an_experiment_without_a_rule_in_its_file_has_no_margin(start, tmp_path):
    start(Train({"adam": 0.9, "sgd": 0.9}), decide=Decide(margin=0.5))
    path = tmp_path / "exp/grid.json"
    content = json.loads(path.read_text())
    assert content.pop("decide") == {"margin": 0.5, "error": 0.05}
    path.write_text(json.dumps(content))

    assert verdict(load_runs(tmp_path)).outcome == "undecided"


@pytest.mark.slow(everywhere=True)
def test_a_grid_that_is_started_again_is_introduced_in_the_same_words(start, capsys):
    train = Train({"adam": 0.9001, "sgd": 0.9})

    start(train, decide=Decide(max_repeats=7), display=True)
    first = capsys.readouterr().out
    start(train, decide=Decide(max_repeats=7), display=True)
    again = capsys.readouterr().out
    start(train, {**ADAM_OR_SGD, "seed": [0, 1, 2]}, display=True, experiment="few")

    assert "6 to 7 repeats (seed) of 2 settings" in first
    assert "6 to 7 repeats (seed) of 2 settings" in again
    assert "3 repeats (seed) of 2 settings" in capsys.readouterr().out
