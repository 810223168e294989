"""The entries of a search in run.json: the trials of a run, and the value that a loop passed to `tell`."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from runmanager.hyperparameters import is_deep
from runmanager.outcome import LARGEST
from runmanager.storage import durable, paths
from runmanager.storage.durable import strict_json
from runmanager.storage.entries import VERSION, RunFolder, read_json, to_entry

_Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class KeptTrial(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored trial of a run, with the run's hyperparameters.

    Attributes:
        number: The trial's number, unique in the experiment.
        is_own: Whether the user, not a sampler, chose this setting.
        attributes: The sampler's attributes of the trial.
    """

    number: _Count
    is_own: bool = False
    attributes: Mapping[str, Any] = {}


class ToldValue(msgspec.Struct, frozen=True):
    """The value that a loop passed to `tell` for a run.

    Attributes:
        attempts: The number of attempts at the run at the time of `tell`; a later attempt overrides the value.
        values: The value of each metric; None if the run failed.
    """

    attempts: _Count
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class RunTrials:
    """The trials of a run, and the value that a loop passed to `tell` for the run."""

    trials: Sequence[KeptTrial] = ()
    told: ToldValue | None = None

    def adding(self, trials: Sequence[KeptTrial]) -> "RunTrials":
        """Return a copy of the entries with further trials."""
        numbers = {trial.number for trial in self.trials}
        new = [trial for trial in trials if trial.number not in numbers]
        return RunTrials([*self.trials, *new], self.told)

    def as_json(self) -> dict[str, Any]:
        """Return the entries of run.json; empty for a run without a search."""
        content: dict[str, Any] = {}
        if self.trials:
            content["trials"] = msgspec.to_builtins(self.trials)
        if self.told:
            content["told"] = msgspec.to_builtins(self.told)
        return content


def read_trials(run: RunFolder) -> RunTrials:
    """Read the entries of a search in run.json, without damaged entries."""
    document = read_json(run.path / paths.RUN) or {}
    entries = document.get("trials")
    trials: list[KeptTrial] = []
    for entry in entries if isinstance(entries, list) else []:
        with suppress(msgspec.ValidationError):
            trial = msgspec.convert(entry, KeptTrial)
            trials.append(KeptTrial(trial.number, trial.is_own, without_text(trial.attributes)))
    told = None
    with suppress(msgspec.ValidationError):
        told = msgspec.convert(document.get("told"), ToldValue | None)
    if told and not all(value is None or math.isfinite(value) for value in told.values.values()):
        told = None
    return RunTrials(trials, told)


def without_text(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a trial that are plain JSON without text: CMA-ES would unpickle text.

    >>> without_text({"generation": 3, "optimizer": "80049563", "axes": {"width": [1, 2]}})
    {'generation': 3, 'axes': {'width': [1, 2]}}
    """
    content: dict[str, Any] = {}
    for name, value in attributes.items():
        with suppress(TypeError, ValueError, RecursionError):
            strict_json(value)
            if not isinstance(value, str) and not is_deep(value):
                content[name] = value
    return content


def write_run(run: RunFolder, trials: RunTrials) -> None:
    """Write run.json unless its content is unchanged; create the folder of the run if needed.

    Raises:
        StorageError: The file could not be written.
    """
    content = {"v": VERSION, **to_entry(run), **trials.as_json()}
    if read_json(run.path / paths.RUN) != content:
        durable.make_folder(run.path)
        durable.write_file(run.path / paths.RUN, strict_json(content))
