"""Values that were read from a clock in this process: they differ at every start, and change no numbers."""

import re
import time
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

_BILLION = 1e9
_BEFORE_S = 600  # since the program began; it may import this package late
_CLOCKS = (time.time, time.perf_counter, time.monotonic)
_BEGAN = [clock() - _BEFORE_S for clock in _CLOCKS]
_BEGAN_AT = datetime.now().astimezone() - timedelta(seconds=_BEFORE_S)
_MOMENT = re.compile(
    r"(20\d\d)[-_./]?(\d\d)[-_./]?(\d\d)[-_T ]{0,2}(\d\d)[-_:.h]?(\d\d)(?:[-_:.m]?(\d\d))?(?:[.,]\d+)?(?!\d)"
)


def without_clock(value: Any) -> Any:
    """Return a value without what a clock of this process says: text without the moment, for a time its name.

    Whole numbers stay: they may be seeds.

    >>> without_clock(time.time()), without_clock(1.5), without_clock(f"run-{datetime.now():%Y%m%d-%H%M%S}")
    ('a clock', 1.5, 'run-a clock')
    """
    if type(value) is float:
        return "a clock" if _is_reading(value) else value
    return _MOMENT.sub(_without_moment, value) if type(value) is str else value


def _is_reading(value: float) -> bool:
    is_of_hand = value < _BILLION and round(value, 4) == value  # a clock has more digits
    return not is_of_hand and any(
        began <= value <= clock() for began, clock in zip(_BEGAN, _CLOCKS, strict=True)
    )


def _without_moment(match: re.Match[str]) -> str:
    with suppress(ValueError):  # no date
        local = datetime(*(int(part or 0) for part in match.groups())).astimezone()  # type: ignore[arg-type]
        utc = local + (local.utcoffset() or timedelta())
        if any(_BEGAN_AT <= moment <= datetime.now().astimezone() for moment in (local, utc)):
            return "a clock"
    return match[0]
