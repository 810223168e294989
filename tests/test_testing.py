import pytest
import torch

from runmanager import GridError, InvalidArgumentError, load_runs
from runmanager.testing import assert_not_worse


def trainer(mean, executed=None, fault=None):
    """Make a training function whose score is a mean and noise that follows from the seed."""

    def train(run, manager):
        noise = torch.randn((), generator=torch.Generator().manual_seed(run.seed + int(1e4 * mean))).item()
        with manager.run(run):
            for _ in manager.epochs(1):
                if fault == run.seed:
                    raise ValueError("no more")
                if executed is not None:
                    executed.append(run.seed)
                manager.track(score=mean + 0.01 * noise)

    return train


@pytest.mark.slow(everywhere=True)
def test_a_better_one_passes_with_the_verdict():
    result = assert_not_worse(trainer(0.9), trainer(0.8), "max:score", margin=0.001)

    assert (result.outcome, result.better, result.repeats) == ("better", "new", 6)


def test_the_same_function_passes_as_identical():
    result = assert_not_worse(trainer(0.8), trainer(0.8), "max:score", margin=0.001)

    assert result.outcome == "identical"


@pytest.mark.slow(everywhere=True)
def test_one_that_is_equal_within_the_margin_passes():
    assert assert_not_worse(trainer(0.8), trainer(0.801), "max:score", margin=0.05).outcome == "equal"


@pytest.mark.slow(everywhere=True)
def test_a_worse_one_fails_with_verdict_and_table():
    with pytest.raises(AssertionError, match="baseline is better than new by 0") as caught:
        assert_not_worse(trainer(0.7), trainer(0.8), "max:score", margin=0.001)

    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("variant", "baseline ", "new "))] == [
        "baseline", "variant", "baseline", "new",
    ]  # fmt: skip


@pytest.mark.slow(everywhere=True)
def test_what_is_undecided_within_the_budget_fails():
    with pytest.raises(AssertionError, match="but 7 seeds do not decide it"):
        assert_not_worse(trainer(0.8), trainer(0.8001), "max:score", margin=1e-5, max_repeats=7)


@pytest.mark.slow(everywhere=True)
def test_a_training_that_fails_is_no_pass():
    with pytest.raises(AssertionError, match=r"new, seed 3: failed · ValueError: no more"):
        assert_not_worse(trainer(0.9, fault=3), trainer(0.8), "max:score", margin=0.001)


@pytest.mark.slow(everywhere=True)
def test_with_a_root_the_runs_are_kept_and_executed_again_when_the_code_changes(tmp_path):
    def start(mean, executed):
        assert_not_worse(trainer(mean, executed), trainer(0.8), "max:score", margin=0.001, root=tmp_path)
        return executed

    assert start(0.9, []) == list(range(6))
    assert start(0.9, []) == []
    assert start(0.95, []) == list(range(6))
    assert len(load_runs(tmp_path)) == 12


def by_parameters(mean):
    """Make a training function that takes its seed and a hyperparameter as parameters, with defaults."""

    def train(run, manager, seed=0, bonus=0.0):
        noise = torch.randn((), generator=torch.Generator().manual_seed(seed)).item()
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(score=mean + bonus + 0.01 * noise)

    return train


@pytest.mark.slow(everywhere=True)
def test_parameters_of_the_functions_get_the_values_of_the_run():
    result = assert_not_worse(
        by_parameters(0.8), by_parameters(0.8), "max:score", margin=0.001, params={"bonus": [10.0]}
    )

    assert result.table["score"].tolist() == pytest.approx([10.8] * 2, abs=0.01)


def test_an_axis_with_the_name_of_the_assertions_own_is_refused():
    with pytest.raises(GridError, match="'variant' is the axis of new and baseline"):
        assert_not_worse(trainer(0.9), trainer(0.8), "max:score", 0.001, params={"variant": [1]})


@pytest.mark.slow(everywhere=True)
def test_two_that_always_fail_are_a_failed_assertion_and_a_wrong_metric_is_an_error():
    def broken(run, manager):
        raise ValueError("no data")

    with pytest.raises(AssertionError, match="baseline, seed 0: failed · ValueError: no data"):
        assert_not_worse(broken, broken, "max:score", margin=0.001)
    with pytest.raises(InvalidArgumentError, match="no run has that metric"):
        assert_not_worse(trainer(0.9), trainer(0.8), "max:scores", margin=0.001)
