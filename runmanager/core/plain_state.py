"""Plain state in checkpoints: dicts and lists of JSON values, saved as copies and restored in place."""

from typing import Any

from runmanager.errors import CheckpointError

OF_TENSORS = (
    "give the object that has it, as checkpoint={'network': network}, not its state_dict(); a module's "
    "register_buffer() takes other tensors"
)
"""The advice for a tensor."""
_OF_OBJECTS = (
    {"state", "param_groups"}, {"base_lrs", "last_epoch"}, {"cooldown_counter", "num_bad_epochs"},
    {"growth_factor", "backoff_factor"},
)  # fmt: skip
"""Keys of plain states that torch's optimizers, schedulers and scalers return."""


def is_plain_state(part: Any) -> bool:
    """Whether a part of a checkpoint is plain state: a dict or a list without a state_dict()."""
    return isinstance(part, (dict, list)) and not hasattr(part, "state_dict")


def copied(name: str, value: Any, seen: set[int] | None = None) -> Any:
    """Copy plain state, to save the copy; `seen` has the ids of the dicts and lists that were copied before."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value)  # NumPy's float64 is a float too
    # only the outermost dict or list is restored in place, with its type
    if not (isinstance(value, (dict, list)) if seen is None else type(value) in (dict, list)):
        advice = "keep int(...), float(...), str(...), a list or a dict in its place, "
        advice += "or give checkpoint= an object with state_dict() and load_state_dict() that has it"
        if hasattr(value, "untyped_storage") and value.ndim:
            advice = OF_TENSORS
        raise CheckpointError(
            f"{name} must be a JSON value (a number, text, True, False, None, a list or a dict of them), "
            f"got {type(value).__name__}: {advice}"
        )
    seen = set() if seen is None else seen
    if id(value) in seen:
        raise CheckpointError(f"{name} is in the state twice, and would be two objects on resume: keep a copy")
    seen.add(id(value))
    if isinstance(value, list):
        return [copied(f"{name}[{index}]", item, seen) for index, item in enumerate(value)]
    if any(keys <= value.keys() for keys in _OF_OBJECTS):
        raise CheckpointError(
            f"{name} is a copy that state_dict() returns, which restores no object: give the object itself"
        )
    return {
        copied(f"a key of {name}", key, seen): copied(f"{name}[{key!r}]", item, seen)
        for key, item in value.items()
    }


def fill(state: Any, saved: Any) -> None:
    """Restore a saved state into a dict or list, and into those nested dicts and lists that still exist."""
    if not (isinstance(saved, (dict, list)) and isinstance(state, dict) == isinstance(saved, dict)):
        raise TypeError(f"it is a {type(state).__name__}, saved was a {type(saved).__name__}")
    before: dict[Any, Any] = dict(state) if isinstance(state, dict) else dict(enumerate(state))
    state.clear()
    for key, value in saved.items() if isinstance(saved, dict) else enumerate(saved):
        item = value
        if isinstance(value, (dict, list)) and type(before.get(key)) is type(value):
            item = before[key]
            fill(item, value)
        if isinstance(state, dict):
            state[key] = item
        else:
            state.append(item)
