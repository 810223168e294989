import math

import numpy as np
import pytest

from runmanager.results.verdict import difference


def log_e(values, tau2=4.0):
    """Compute the logarithm of the e-value as it is defined (Rouder et al. 2009)."""
    n = len(values)
    mean = sum(values) / n
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    t2, nu, prior = (mean / (spread / math.sqrt(n))) ** 2, n - 1, 1 + n * tau2
    logs = math.log(1 + t2 / (prior * nu)) - math.log(1 + t2 / nu)
    return -math.log(prior) / 2 - (nu + 1) / 2 * logs


@pytest.mark.parametrize("num_pairs", [1, 6])
@pytest.mark.parametrize("n", [4, 5, 12, 40])
def test_the_interval_ends_where_the_e_process_decides(n, num_pairs):
    values = np.random.default_rng(n).normal(0.3, 1.0, n).tolist()

    lead = difference(values, num_pairs=num_pairs)

    assert lead.n == n
    assert lead.mean == pytest.approx(sum(values) / n)
    if n == 4 and num_pairs > 1:  # E cannot reach 6 / 0.05 yet
        assert math.isnan(lead.low)
        return
    for end in (lead.low, lead.high):
        assert log_e([value - end for value in values]) == pytest.approx(math.log(num_pairs / 0.05))


@pytest.mark.parametrize("values", [[], [1.0], [0.5, 0.7, 0.9], [0.25] * 8, [0.0] * 4])
def test_there_is_no_interval_before_the_fourth_repeat_nor_without_spread(values):
    lead = difference(values)

    assert math.isnan(lead.low)
    assert math.isnan(lead.high)
    assert not lead.is_decided


def test_results_that_never_differ_are_identical_after_five_repeats():
    assert difference([0.0] * 5) == (5, 0.0, 0.0, 0.0)


def test_two_equal_settings_are_told_apart_by_chance_as_rarely_as_promised_however_often_one_looks():
    wrong = 0
    for values in np.random.default_rng(1).normal(size=(300, 25)).tolist():
        wrong += any(difference(values[:n]).is_decided for n in range(4, 26))

    assert wrong / 300 < 0.05


@pytest.mark.parametrize("values", [[1e308] * 5, [math.inf, 1.0, 2.0, 3.0], [1e200, -1e200, 1e200, 0.0]])
def test_what_is_too_large_for_a_mean_has_none(values):
    lead = difference(values)

    assert lead.n == len(values)
    assert math.isnan(lead.mean)
    assert not lead.is_decided
