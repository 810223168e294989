"""Telling a progress what happens to runs, as the dispatcher of a grid does."""

from dataclasses import asdict, dataclass
from weakref import WeakKeyDictionary

from runmanager.executors.signals import Stop
from runmanager.live.progress import GridProgress
from runmanager.outcome import Outcome
from runmanager.session.dispatch import Dispatcher

_told: WeakKeyDictionary[GridProgress, "Telling"] = WeakKeyDictionary()


@dataclass(frozen=True)
class Advised(Outcome):
    """An outcome with a next step of its own."""

    advice: str = ""

    def next_step(self, error_log, *, is_retried=False):
        return self.advice


class Telling(Dispatcher):
    def run_ended(self, run, outcome, next_step="", *, is_retried=False):
        super().run_ended(run, Advised(**asdict(outcome), advice=next_step), is_retried=is_retried)


def told(shown, stop=None):
    """Return what tells it; always the same one."""
    if shown not in _told:
        _told[shown] = Telling([shown], stop or Stop(), shown.say, shown.stopping)
    return _told[shown]
