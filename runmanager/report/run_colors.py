"""The colors of the runs: one hyperparameter sets them, and each value has the same color in every figure."""

from collections.abc import Sequence

from runmanager.report.model import PageAxis

NUM_COLORS = 6


def colored_axis(axes: Sequence[PageAxis]) -> PageAxis | None:
    """Return the hyperparameter that colors the runs: the first that is numeric or has few values."""
    return next((axis for axis in axes if axis.is_ordered or len(axis.labels) <= NUM_COLORS), None)


def color(axis: PageAxis | None, index: int) -> str:
    """Return the CSS class of a run's color; `axis` is the hyperparameter that colors the runs."""
    return color_of(axis, axis.codes[index]) if axis else "c1"


def color_of(axis: PageAxis, code: int) -> str:
    """Return the CSS class of a value's color; numbers are spread over a color ramp.

    >>> [color_of(PageAxis("lr", ["0.1", "0.2", "0.3"], [], True), code) for code in range(3)]
    ['o0', 'o2', 'o5']
    >>> color_of(PageAxis("optimizer", ["adam", "sgd"], [], False), 1)
    'c1'
    """
    if not axis.is_ordered:
        return f"c{code % NUM_COLORS}"
    return f"o{code * (NUM_COLORS - 1) // max(1, len(axis.labels) - 1)}"
