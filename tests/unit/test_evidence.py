"""The e-process of a verdict, and what a number of repeats can decide."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from runmanager.answers import evidence
from runmanager.answers.evidence import closed, fewest, leads, log_evidence, needed
from runmanager.answers.power import PROMISED, power, smallest


def bayes_factor(values):
    """Integrate the Bayes factor of the t statistic as it is defined (Rouder et al. 2009)."""
    n = len(values)
    t = stats.ttest_1samp(values, 0).statistic

    def density(effect):
        return stats.nct.pdf(t, n - 1, math.sqrt(n) * effect) * stats.norm.pdf(effect, 0, math.sqrt(8))

    return integrate.quad(density, -15, 15, limit=500, points=[0.0, t / math.sqrt(n)])[0] / stats.t.pdf(
        t, n - 1
    )


@pytest.mark.parametrize("n", [2, 3, 6, 12])
def test_the_closed_form_is_the_integral(n):
    values = np.random.default_rng(n).normal(0.4, 1.0, n)
    sums, squares = values.sum(), (values**2).sum()

    assert evidence._log_bayes(n, sums, squares) == pytest.approx(math.log(bayes_factor(values)), abs=1e-6)


@pytest.mark.parametrize("sizes", [[1.0, 0.3, 2.0, 1.0, 0.7], [5.0, 1e-3, 4.0, 4.0, 90.0]])
def test_a_bet_is_fair_whatever_the_sizes_of_the_differences_are(sizes):
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(sizes))).reshape(len(sizes), -1).T

    evidences = np.exp(log_evidence(signs * np.array(sizes)))

    assert evidences.mean(axis=0) == pytest.approx(np.ones(len(sizes)))  # of all signs, each as likely


def test_the_evidence_has_no_unit_and_no_direction_and_skips_what_is_missing():
    values = np.random.default_rng(0).normal(0.5, 1.0, 9)

    expected = log_evidence(values)

    for same in (values * 1e-200, values * 1e90, -values):
        assert log_evidence(same) == pytest.approx(expected)
    gaps = np.insert(values, [0, 4], math.nan)
    assert log_evidence(gaps)[[0, 1, 5, -1]] == pytest.approx([0.0, expected[0], expected[3], expected[-1]])
    assert log_evidence(np.stack([values, -values])).shape == (2, 9)
    assert not log_evidence(np.zeros(4)).any()
    assert np.isfinite(log_evidence(np.ones(3000))).all()


def lead_of(values, error=0.05):
    return leads(np.stack([np.array(values, float), np.zeros(len(values))])[..., None], 0, error)[1]


@pytest.mark.parametrize("num_pairs", [1, 6])
@pytest.mark.parametrize("n", [6, 12, 40])
def test_the_interval_ends_where_the_evidence_decides(n, num_pairs):
    values = np.random.default_rng(n).normal(0.3, 1.0, n)

    lead = lead_of(values, 0.05 / num_pairs)

    assert lead.n == n
    assert lead.mean == pytest.approx(values.mean())
    if n == 6 and num_pairs > 1:  # no evidence of six repeats is 6 / 0.05
        assert math.isnan(lead.low)
        return
    assert lead.low < lead.mean < lead.high
    for end in (lead.low, lead.high):
        assert log_evidence(values - end)[-1] == pytest.approx(math.log(num_pairs / 0.05), abs=1e-4)
    assert lead.is_decided == (log_evidence(values)[-1] >= math.log(num_pairs / 0.05))


@pytest.mark.parametrize(
    "values", [[], [1.0], [0.5, 0.7, 0.9, 0.6, 0.7], [0.25] * 8, [0.1 + 0.2, 0.3] * 5, [0.0] * 4]
)
def test_there_is_no_interval_before_the_sixth_repeat_nor_without_spread(values):
    lead = lead_of(values)

    assert math.isnan(lead.low)
    assert math.isnan(lead.high)
    assert not lead.is_decided


@pytest.mark.parametrize("values", [[1e308] * 5, [math.inf, 1.0, 2.0, 3.0], [1e200, -1e200, 1e200, 0.0]])
def test_what_is_too_large_for_a_mean_has_none(values):
    lead = lead_of(values)

    assert lead.n == len(values)
    assert math.isnan(lead.mean)
    assert not lead.is_decided


def test_no_verdict_takes_fewer_repeats_than_signs_allow():
    assert [fewest(20 * k / 2) for k in (2, 3, 4, 8)] == [6, 7, 7, 8]
    assert 2 ** (fewest(20) - 1) >= 20  # as if each difference had the same sign


def partitions(items):
    if not items:
        yield []
        return
    first, *others = items
    for groups in partitions(others):
        yield [[first], *groups]
        for index, group in enumerate(groups):
            yield [*groups[:index], [first, *group], *groups[index + 1 :]]


@pytest.mark.parametrize("seed", range(4))
def test_the_evidence_of_all_pairs_together_is_refuted_by_no_division_into_equal_groups(seed):
    k = 6
    pairs = np.exp(np.random.default_rng(seed).normal(1, 2, (k, k)))
    pairs = (pairs + pairs.T) / 2
    np.fill_diagonal(pairs, 0.0)

    together = closed(pairs, 2)

    for other in {*range(k)} - {2}:
        weakest = min(
            sum(pairs[np.ix_(group, group)].sum() / (len(group) - 1) for group in groups if len(group) > 1) / k
            for groups in partitions(list(range(k)))
            if any({2, other} <= {*group} for group in groups)
        )
        assert together[other] <= weakest * (1 + 1e-9)
    assert closed(np.array([[0.0, 7.0], [7.0, 0.0]]), 0).tolist() == [0.0, 7.0]


NOISES = {
    "normal": lambda random, shape: random.normal(size=shape),
    "skewed": lambda random, shape: random.exponential(size=shape),
    "bimodal": lambda random, shape: random.choice([-1.0, 1.0], shape) + random.normal(0, 0.2, shape),
    "heavy tails": lambda random, shape: random.standard_t(3, shape),
}


@pytest.mark.parametrize("noise", NOISES)
def test_equal_settings_are_told_apart_as_rarely_as_promised_however_often_one_looks(noise):
    number, k = 1000, 4
    results = NOISES[noise](np.random.default_rng(1), (number, k, 40))

    pairs = np.zeros((number, 40, k, k))
    for one in range(k):
        for other in range(k):
            pairs[..., one, other] = np.exp(log_evidence(results[:, one] - results[:, other]))
    together = np.stack([closed(pairs, leader) for leader in range(k)], axis=-1)

    assert (together >= 20).any(axis=(1, 2, 3)).mean() < 0.045
    assert (pairs[..., 0, 1] >= 20).any(axis=1).mean() < 0.045


def test_a_difference_of_one_and_a_half_standard_deviations_takes_seven_repeats():
    differences = np.random.default_rng(3).normal(1.5, 1.0, (2000, 40))

    is_decided = log_evidence(differences) >= math.log(20)
    stops = is_decided.argmax(axis=1) + 1
    against = log_evidence(differences - 1.5)[np.arange(2000), stops - 1]

    assert is_decided.any(axis=1).all()
    assert np.median(stops) <= 7
    assert (against < math.log(20)).mean() >= 0.95  # the interval has the mean at the moment of stopping


def test_the_repeats_needed_count_the_evidence_that_the_first_repeats_have_spent():
    steady, late = [1.0, 1.2, 0.8, 1.1, 0.9, 1.0], [-3.0, 2.0, 1.9, 1.7, 1.6, 1.8]

    few, many = (needed(np.array(each), 1000) for each in (steady, late))

    assert 11 <= few <= 13  # each further repeat doubles the evidence at most
    assert few < many < needed(np.array(late[::-1]), 1000)  # of the same mean and spread, in another order
    assert needed(np.array([1.0, -1.0, 0.1]), 20) == math.inf


KNOWN: dict[str, Any] = {"known_by": math.inf, "anytime": True}


@pytest.mark.parametrize(("num_rivals", "n"), [(2, 8), (4, 9)])
def test_the_smallest_difference_is_decided_in_8_of_10_cases(num_rivals, n):
    effect = smallest(n, num_rivals, 0.05, **KNOWN)

    assert power(effect, n, num_rivals, 0.05, **KNOWN) == pytest.approx(PROMISED, abs=0.01)
    few = [smallest(n, num_rivals, 0.05, known_by=known_by, anytime=True) for known_by in (2, 9)]
    assert few[0] > few[1] > effect  # a spread from few repeats makes the promise larger
    assert smallest(5, num_rivals, 0.05, **KNOWN) == math.inf


def test_the_power_is_that_of_the_evidence():
    differences = 1.2 + np.random.default_rng(5).normal(size=(3000, 12))
    evidence = log_evidence(differences) >= math.log(20)

    anytime = power(1.2, 12, 2, 0.05, known_by=math.inf, anytime=True)
    at_the_end = power(1.2, 12, 2, 0.05, known_by=math.inf, anytime=False)

    assert anytime == pytest.approx(evidence.any(axis=1).mean(), abs=0.03)
    assert at_the_end == pytest.approx(evidence[:, -1].mean(), abs=0.03)
    assert power(1.2, 5, 2, 0.05, **KNOWN) == 0
