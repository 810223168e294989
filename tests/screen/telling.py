"""Telling a progress what happens to runs, as the dispatcher of a grid does."""

from dataclasses import asdict, dataclass
from functools import partial
from weakref import WeakKeyDictionary

from runmanager.executors.signals import Stop
from runmanager.outcome import Outcome
from runmanager.screen.live import GridProgress
from runmanager.session.dispatch import Dispatcher
from runmanager.storage.design import Design

_told: WeakKeyDictionary[GridProgress, "Telling"] = WeakKeyDictionary()


@dataclass(frozen=True)
class Advised(Outcome):
    """An outcome with a next step of its own."""

    advice: str = ""

    def next_step(self, error_log, *, is_retried=False):
        return self.advice


class Telling(Dispatcher):
    def run_ended(self, run, outcome, next_step="", *, is_retried=False, listeners=None):  # type: ignore[override]
        super().run_ended(run, Advised(**asdict(outcome), advice=next_step), is_retried=is_retried)


def progress_of(folders, varying, design=None, *, name="exp", show=True, page=None, **batch):
    """Return a progress that has begun to count the runs of a grid."""
    shown = GridProgress(name, show=show, page=page)
    shown.begin_grid(design or Design(), varying, [])
    shown.begin_batch(folders, **batch)
    return shown


def told(shown, stop=None):
    """Return what tells it; always the same one."""
    if shown not in _told:
        stop = stop or Stop()
        _told[shown] = Telling([shown], stop, shown.say, partial(shown.stopping, stop))
    return _told[shown]
