"""What a worker process tells the process that has started it."""

from typing import NamedTuple

from runmanager.executors.base import Step
from runmanager.outcome import EpochRecord, Outcome


class Ready(NamedTuple):
    """Its device is warm; runs may come."""


class Refused(NamedTuple):
    """The work cannot be loaded, and why; the process ends."""

    why: str


class Lost(NamedTuple):
    """Its device does not answer, and what that says; the process ends."""

    why: str


class Raised(NamedTuple):
    """An exception left the work and ends the grid; the process ends."""

    error: BaseException


Message = Ready | Refused | Lost | Raised | EpochRecord | Step | Outcome
"""The last three are of the run: it has committed an epoch, got on with one, or ended."""
