"""The entries of a search in run.json: the trials of a run."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from runmanager.core import files
from runmanager.core.entries import VERSION, RunFolder, read_json, to_entry
from runmanager.core.files import strict_json
from runmanager.core.outcome import LARGEST
from runmanager.core.values import is_deep

_Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class KeptTrial(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored trial of a run, with the run's hyperparameters.

    Attributes:
        number: The trial's number, unique in the experiment.
        attributes: The sampler's attributes of the trial.
    """

    number: _Count
    attributes: Mapping[str, Any] = {}


def read_trials(run: RunFolder) -> list[KeptTrial]:
    """Read the trials of a run in run.json, without damaged entries."""
    entries = (read_json(run.path / files.RUN) or {}).get("trials")
    trials: list[KeptTrial] = []
    for entry in entries if isinstance(entries, list) else []:
        with suppress(msgspec.ValidationError):
            trial = msgspec.convert(entry, KeptTrial)
            trials.append(KeptTrial(trial.number, without_text(trial.attributes)))
    return trials


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


def write_run(run: RunFolder, trials: Sequence[KeptTrial] = ()) -> None:
    """Write run.json with further trials unless its content is unchanged; create the folder if needed."""
    before = read_trials(run)
    numbers = {trial.number for trial in before}
    kept = [*before, *(trial for trial in trials if trial.number not in numbers)]
    content = {"v": VERSION, **to_entry(run), **({"trials": msgspec.to_builtins(kept)} if kept else {})}
    if read_json(run.path / files.RUN) != content:
        files.make_folder(run.path)
        files.write_file(run.path / files.RUN, strict_json(content))
