"""Checkpoints of a run: the states, the random states and the record of the epoch.

A run keeps two generations of checkpoints. A checkpoint inside an epoch has the partial metrics of the epoch in
place of its record, and only one generation.

A checkpoint is a SHA-256 (32 bytes), then the bytes of torch.save: torch.load does not detect damage.
It is always loaded with ``weights_only=True``, so no code in a file under runs/ is ever executed. The hash
detects damage, not forgery.
"""

import contextlib
import hashlib
import io
import pickle
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runmanager.core import files, plain_state
from runmanager.core.outcome import EpochRecord
from runmanager.devices import torch_devices
from runmanager.errors import CheckpointError, first_line

VERSION = 1
_HASH = 32  # number of bytes of a SHA-256


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after an epoch, or inside an epoch."""

    id: str  # identity of the run
    record: EpochRecord  # repairs a journal without this record; inside an epoch, only the number is set
    states: Mapping[str, Any]  # name -> state_dict, or a generator's state
    random: Mapping[str, Any]  # from `torch_devices.random_states`
    is_left: bool = False  # whether the loop over the epochs was left with break in this epoch
    # inside an epoch, the partial metrics and the position of the loader
    inside: Mapping[str, Any] | None = None


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, verify: bool) -> None:
    """Write a checkpoint, and keep the previous checkpoint as the second generation."""
    try:
        content = _to_bytes(checkpoint)
        if verify:
            _from_bytes(content)
    except Exception as error:
        raise CheckpointError(
            "a state holds objects that could not be loaded without executing code: keep tensors, "
            f"numbers, text, lists and dicts in state_dict() ({_cause(error)})"
        ) from error
    if checkpoint.inside is None:
        files.write_file(folder / files.CHECKPOINT, content, folder / files.PREVIOUS_CHECKPOINT)
    else:
        files.write_file(folder / files.INSIDE_CHECKPOINT, content)


def load_checkpoint(
    folder: Path, id_: str, problems: list[str], *, is_inside: bool = False
) -> Checkpoint | None:
    """Read the newest intact checkpoint of a run; with `is_inside`, the checkpoint inside an epoch."""
    after_epochs = (files.CHECKPOINT, files.PREVIOUS_CHECKPOINT)
    for path in (folder / name for name in ((files.INSIDE_CHECKPOINT,) if is_inside else after_epochs)):
        try:
            content = _content(path)
        except FileNotFoundError:
            continue
        try:
            checkpoint = _from_bytes(content)
            if (checkpoint.inside is not None) != is_inside:
                raise ValueError("it is of another kind")  # noqa: TRY301 - handled below like other damage
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged or hostile file raises anything
            cause = _cause(error)
        else:
            if checkpoint.id == id_:
                return checkpoint
            cause = "it belongs to another run"
        problems.append(f"{path} is not used ({cause})")
        with contextlib.suppress(OSError):
            # otherwise the damaged file would become the second generation
            path.replace(path.with_suffix(".damaged"))
    return None


def remove_checkpoint_files(folder: Path, *, is_inside: bool = False) -> None:
    """Remove all checkpoints of a completed run; with `is_inside`, only the checkpoint inside an epoch."""
    after_epochs = () if is_inside else (files.CHECKPOINT, files.PREVIOUS_CHECKPOINT)
    for path in (folder / name for name in (files.INSIDE_CHECKPOINT, *after_epochs)):
        with files.explained(path):
            path.unlink(missing_ok=True)


def set_aside(folder: Path, attempt: int) -> None:
    """Rename the newest checkpoint of a superseded attempt, and remove the others."""
    aside = folder / f"attempt-{attempt}.{files.CHECKPOINT}"
    for name in (files.PREVIOUS_CHECKPOINT, files.CHECKPOINT):  # the newest replaces the other
        with files.explained(folder / name), contextlib.suppress(FileNotFoundError):
            (folder / name).replace(aside)
    remove_checkpoint_files(folder, is_inside=True)


def set_weights_aside(folder: Path, attempt: int) -> None:
    """Rename the weights of a superseded attempt, if the attempt has weights."""
    path = folder / files.WEIGHTS
    with files.explained(path), contextlib.suppress(FileNotFoundError):
        path.replace(folder / f"attempt-{attempt}.{files.WEIGHTS}")


def save_weights(folder: Path, network: torch.nn.Module) -> None:
    """Write a network's weights as a plain state_dict, for ``torch.load(path, weights_only=True)``."""
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    files.write_file(folder / files.WEIGHTS, file.getvalue())


def load_weights(folder: Path, network: torch.nn.Module) -> None:
    """Load the saved weights of a run into a network; no code in the file is executed."""
    path = folder / files.WEIGHTS
    if not path.exists():
        rule = "has kept no weights: write manager.epochs(n, keep='best:validation_loss')"
        raise CheckpointError(f"{files.for_people(folder)} {rule}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{files.for_people(path)} cannot be loaded: {first_line(error)}") from error
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        step = f"build it with load_run({str(files.for_people(folder))!r}).params"
        raise CheckpointError(
            f"{files.for_people(path)} does not fit the network ({why:.500}): {step}"
        ) from error


def state_of(name: str, part: Any) -> Any:
    """Return the state of one part of a checkpoint."""
    if isinstance(part, torch.Generator):
        return part.get_state()
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        return part.state_dict()
    if plain_state.is_plain_state(part):
        return plain_state.copied(f"checkpoint[{name!r}]", part)
    raise CheckpointError(
        f"checkpoint[{name!r}] must have state_dict() and load_state_dict(), or be a torch.Generator, "
        f"or a dict or a list of JSON values, got {type(part).__name__}"
        f"{f': {plain_state.OF_TENSORS}' * isinstance(part, torch.Tensor)}"
    )


def restore(folder: Path, parts: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Restore the states of the parts of a run's checkpoint."""
    for name, part in parts.items():
        try:
            if isinstance(part, torch.Generator):
                part.set_state(states[name])
            elif plain_state.is_plain_state(part):
                plain_state.fill(part, states[name])
            else:
                part.load_state_dict(states[name])
        except Exception as error:
            why, where = " ".join(str(error).split()), shlex.quote(str(files.for_people(folder)))
            raise CheckpointError(
                f"the checkpoint's state of {name!r} does not fit ({why}): the code has changed; "
                f"remove the run by runmanager rm {where}, then start it again"
            ) from error


def _cause(error: Exception) -> str:
    """Return the cause in one printable line, without torch's advice to disable weights_only."""
    first = error.__context__ if isinstance(error, pickle.UnpicklingError) else error
    line = (str(first).strip() or type(first).__name__).partition("\n")[0].partition(". Please")[0]
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


def _to_bytes(checkpoint: Checkpoint) -> bytes:
    record = checkpoint.record
    content = {
        "v": VERSION,
        "id": checkpoint.id,
        "record": (record.epoch, dict(record.metrics), dict(record.times), record.cold, record.steps),
        "states": dict(checkpoint.states),
        "random": dict(checkpoint.random),
        "is_left": checkpoint.is_left,
        **({} if checkpoint.inside is None else {"inside": dict(checkpoint.inside)}),
    }
    file = io.BytesIO()
    file.write(bytes(_HASH))
    torch.save(content, file)
    view = file.getbuffer()
    view[:_HASH] = hashlib.sha256(view[_HASH:]).digest()
    return file.getvalue()


def _content(path: Path) -> bytes:
    """Read a checkpoint's bytes; b"" if the path is not a regular file."""
    size = path.stat().st_size
    if path.is_symlink() or not path.is_file():
        return b""
    with files.explained(path), files.opened(path) as (descriptor, _):
        return files.read_at_most(descriptor, size)


def _from_bytes(content: bytes) -> Checkpoint:
    body = memoryview(content)[_HASH:]
    if hashlib.sha256(body).digest() != content[:_HASH]:
        raise ValueError("its checksum differs: it is damaged")
    file = io.BytesIO(body)
    with zipfile.ZipFile(file) as archive:  # compressed members may unpack to any size
        if any(
            m.compress_type != zipfile.ZIP_STORED or m.file_size != m.compress_size for m in archive.infolist()
        ):
            raise ValueError("it is compressed, as torch.save does not")
    file.seek(0)
    with torch_devices.quiet():  # torch warns before it raises the error
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        raise TypeError("it is no checkpoint")
    if loaded["v"] != VERSION:
        raise ValueError(f"it is of version {loaded['v']}, this is version {VERSION}")
    epoch, metrics, times, cold, steps = loaded["record"]
    metrics, times = ({str(name): float(v) for name, v in values.items()} for values in (metrics, times))
    record = EpochRecord(int(epoch), metrics, times, cold=bool(cold), steps=int(steps))
    inside = dict(loaded["inside"]) if "inside" in loaded else None
    states, randoms = dict(loaded["states"]), dict(loaded["random"])
    return Checkpoint(str(loaded["id"]), record, states, randoms, loaded["is_left"] is True, inside)
