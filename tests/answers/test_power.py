import math
from typing import Any

import numpy as np
import pytest

from runmanager.answers.evidence import log_evidence
from runmanager.answers.power import PROMISED, power, smallest

KNOWN: dict[str, Any] = {"known_by": math.inf, "anytime": True}


@pytest.mark.parametrize(("num_rivals", "n"), [(2, 8), (4, 9)])
def test_the_smallest_difference_is_decided_in_8_of_10_cases(num_rivals, n):
    effect = smallest(n, num_rivals, 0.05, **KNOWN)

    assert power(effect, n, num_rivals, 0.05, **KNOWN) == pytest.approx(PROMISED, abs=0.01)


def test_the_power_is_that_of_the_evidence():
    differences = 1.2 + np.random.default_rng(5).normal(size=(3000, 12))
    evidence = log_evidence(differences) >= math.log(20)

    anytime = power(1.2, 12, 2, 0.05, known_by=math.inf, anytime=True)
    at_the_end = power(1.2, 12, 2, 0.05, known_by=math.inf, anytime=False)

    assert anytime == pytest.approx(evidence.any(axis=1).mean(), abs=0.03)
    assert at_the_end == pytest.approx(evidence[:, -1].mean(), abs=0.03)
    assert at_the_end < anytime
    assert power(1.2, 5, 2, 0.05, **KNOWN) == 0


def test_a_spread_from_few_repeats_makes_the_promise_larger():
    by = [smallest(8, 2, 0.05, known_by=known_by, anytime=True) for known_by in (2, 9, math.inf)]

    assert by[0] > by[1] > by[2]


@pytest.mark.slow(everywhere=True)
def test_too_few_repeats_and_too_small_differences_have_no_number():
    assert smallest(5, 2, 0.05, **KNOWN) == math.inf
    assert math.isfinite(smallest(26, 40, 0.05, **KNOWN))
