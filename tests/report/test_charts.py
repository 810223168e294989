import math

import pytest

from runmanager.report.svg import Scale


@pytest.mark.parametrize(
    ("low", "high"), [(-1e308, 1e308), (0.0, math.inf), (1.7e308, 1.7e308), (5e-324, 1e308)]
)
@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_any_numbers_have_a_scale(low, high, is_logarithmic):
    scale = Scale(low, high, 0, 100, is_logarithmic=is_logarithmic and low > 0)

    assert all(map(math.isfinite, [scale(1.0), *map(scale, scale.ticks())]))
