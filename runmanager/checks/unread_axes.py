"""Axes whose names the training function never mentions."""

import re
from collections.abc import Callable, Iterable
from inspect import signature

from runmanager.core.wording import listed

_READS = r"(def \w+|\b(run|begin_run|fit|getattr|hasattr))\({0}\b|\b{0}\.[a-zA-Z]"
"""What reads no axis that is not named elsewhere: the functions that get the run, and its attributes."""


def unread_axes(train: Callable[..., object], source: str, axes: Iterable[str]) -> str:
    """Return a sentence about axes whose names occur nowhere in the source that `train` reaches, or ""."""
    run, words = next(iter(signature(train).parameters), "run"), {*re.findall(r"\w+", source)}
    unread = [name for name in axes if name.partition(".")[0] not in words]
    is_passed_on = re.search(rf"\b{run}\b", re.sub(_READS.format(run), "", source))
    if unread and source.strip() and not is_passed_on:
        return f"train never reads {listed(map(repr, unread))}: read run.{unread[0]}, or leave it out"
    return ""
