import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager import GridError, PruneError, SuccessiveHalving

RULES = st.builds(SuccessiveHalving, st.sampled_from(["loss", "max:f1"]), st.integers(2, 9), st.integers(1, 9))
VALUES = st.lists(st.floats() | st.integers(0, 3).map(float), min_size=1, max_size=30)


@given(RULES, st.integers(0, 1000))
def test_the_next_rung_is_the_first_of_all_rungs_after_an_epoch(rule, epoch):
    rungs = list(itertools.takewhile(lambda rung: rung <= epoch, rule.rungs()))

    following = rule.next_rung(epoch)

    assert following > epoch
    assert following == (rungs[-1] * rule.factor if rungs else rule.min_epochs)


@given(RULES, VALUES)
def test_one_in_factor_goes_on_and_none_that_stays_is_better(rule, values):
    best = rule.best(values)

    is_finite = [math.isfinite(value) for value in values]
    assert len(best) == min(max(len(values) // rule.factor, 1), sum(is_finite))
    assert all(is_finite[place] for place in best)
    sign = rule.goal.sign
    assert all(
        sign * values[place] >= sign * values[other]
        for place in best
        for other in set(range(len(values))) - set(best)
        if is_finite[other]
    )


def test_of_equal_runs_the_first_goes_on():
    assert SuccessiveHalving("loss").best([2.0, 1.0, 1.0, 1.0, 2.0, 3.0]) == [1, 2]


@pytest.mark.parametrize(
    ("metric", "goal"),
    [
        ("test_loss", ("test_loss", -1)),
        ("accuracy", ("accuracy", 1)),
        ("min:epoch duration", ("epoch duration", -1)),
        ("max:f1", ("f1", 1)),
    ],
)
def test_a_metric_says_which_value_is_best(metric, goal):
    assert SuccessiveHalving(metric).goal == goal


@pytest.mark.parametrize("metric", ["f1", "", "best:f1", "max:", 3])
def test_a_metric_whose_best_value_nobody_knows_is_refused(metric):
    with pytest.raises(GridError, match="'min:<metric>' or 'max:<metric>' of any other, got"):
        SuccessiveHalving(metric)


def test_all_problems_of_a_rule_are_told_at_once():
    with pytest.raises(GridError) as caught:
        SuccessiveHalving("f1", factor=1, min_epochs=0.5)  # type: ignore[arg-type]

    assert [problem.partition(",")[0] for problem in caught.value.problems] == [
        "metric must be a loss or an accuracy",
        "factor must be a whole number",
        "min_epochs must be a whole number",
    ]


def test_a_metric_that_an_epoch_lacks_is_named_beside_those_that_it_has():
    with pytest.raises(PruneError) as caught:
        SuccessiveHalving("test_loss").check({"loss": 1.0, "accuracy": 0.5})

    rule = "runs are to be compared by 'test_loss', which the epoch of a rung does not have"
    assert str(caught.value) == f"{rule}; it has: loss, accuracy. Track it in every epoch"
