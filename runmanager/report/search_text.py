"""The sentences of the page about a sample or a search: the values of the best runs."""

import math
from collections import Counter
from collections.abc import Sequence

from runmanager.answers.sampled import is_in_magnitudes
from runmanager.report.model import PageAxis, ReportData
from runmanager.report.svg import Scale
from runmanager.tables.cells import cell

_ROOM = 0.03  # margin beside the outermost dots, as a share of the range
_OUTER = 0.25  # outer share of a range: if all best runs are in this share, the range may be too narrow
_FEWEST = 5  # minimum number of best runs; all five are in an outer quarter by chance in 1 of 500 axes
_MOST_NAMED = 4  # maximum number of values in a sentence


def range_sentence(data: ReportData, axis: PageAxis) -> str:
    """Return a sentence about the values of the best runs for a hyperparameter."""
    best = best_tenth(data)
    which = "The best run" if len(best) == 1 else f"The best {len(best):,} of {len(data.order):,} runs"
    if not axis.is_sampled:
        both = [
            ", ".join(f"{number} {axis.labels[code]}" for code, number in counts.most_common(_MOST_NAMED))
            for counts in (Counter(axis.codes[run] for run in runs) for runs in (best, data.order))
        ]
        return f"{which}: {both[0]}. All: {both[1]}."
    runs = with_number(data, axis)
    numbers = sorted(axis.number(run) for run in best if run in set(runs))
    if not numbers:
        return f"{which} have no {axis.name}."
    low, high = (cell(end) for end in (numbers[0], numbers[-1]))
    ends = [cell(end(axis.number(run) for run in runs)) for end in (min, max)]
    share = scale_of(axis, runs, 0.0, 1.0)
    hint = ""
    if len(numbers) >= _FEWEST and share(numbers[-1]) < _OUTER:
        hint = " They are at the lower end: smaller values may be better."
    elif len(numbers) >= _FEWEST and share(numbers[0]) > 1 - _OUTER:
        hint = " They are at the upper end: larger values may be better."
    have = f"{low} to {high}" if low != high else low
    return f"{which} have {axis.name} {have}; {ends[0]} to {ends[1]} were tried.{hint}"


def best_tenth(data: ReportData) -> Sequence[int]:
    """Return the best tenth of the runs, at least five: fewer runs can all be in an outer quarter by chance."""
    return data.order[: max(_FEWEST, math.ceil(len(data.order) / 10))]


def with_number(data: ReportData, axis: PageAxis) -> list[int]:
    """Return the runs with a score and a number on this axis, the best run first."""
    return [run for run in data.order if not math.isnan(axis.number(run))]


def scale_of(axis: PageAxis, runs: Sequence[int], start: float, end: float) -> Scale:
    """Return the scale of a hyperparameter; a logarithmic scale if the numbers span orders of magnitude."""
    return _scale_of([axis.number(run) for run in runs], start, end)


def _scale_of(numbers: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(numbers), max(numbers)
    if is_in_magnitudes(numbers):
        room = min((high / low) ** _ROOM, 1e9)
        return Scale(low / room or low, high * room, start, end, is_logarithmic=True)
    room = _ROOM * (high - low)
    return Scale(low - room, high + room, start, end)
