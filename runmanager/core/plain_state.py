"""Plain state in checkpoints: dicts and lists of JSON values, saved as copies and restored in place."""

from typing import Any

from runmanager.core.values import plain
from runmanager.errors import CheckpointError

_VALUES = (bool, int, float, str, type(None))
OF_TENSORS = (
    "give the object that has it, as checkpoint={'network': network}, not its state_dict(); a module's "
    "register_buffer() takes other tensors"
)
"""The advice for a tensor, or a mapping of tensors."""
_OF_OBJECTS = (
    {"state", "param_groups"}, {"base_lrs", "last_epoch"}, {"cooldown_counter", "num_bad_epochs"},
    {"growth_factor", "backoff_factor"},
)  # fmt: skip
"""Keys of plain states that torch's optimizers, schedulers and scalers return."""
_FLOAT64 = "float64"  # name of NumPy's type that is a subclass of float, with the same arithmetic


def is_plain_state(part: Any) -> bool:
    """Whether a part of a checkpoint is plain state: a dict or a list without a state_dict()."""
    return isinstance(part, (dict, list)) and not hasattr(part, "state_dict")


def copied(name: str, state: Any) -> Any:
    """Copy plain state, to save the copy; shared dicts and lists stay shared in the copy."""
    return _copied(state, name, {}, is_outermost=True)


def _copied(value: Any, name: str, copies: dict[int, Any], *, is_outermost: bool = False) -> Any:
    if type(value) in _VALUES:
        return value
    if type(value).__name__ == _FLOAT64 and isinstance(value, float):
        return float(value)
    if not (type(value) in (dict, list) or is_outermost):
        raise CheckpointError(
            f"{name} must be a JSON value (a number, text, True, False, None, a list or a dict of them), "
            f"got {type(value).__name__}: {_advice(value)}"
        )
    if id(value) in copies:
        if copies[id(value)] is None:
            raise CheckpointError(f"{name} contains itself: remove the cycle")
        return copies[id(value)]
    copies[id(value)] = None  # the copy; None until it is complete
    copy: Any
    if isinstance(value, dict):
        if any(keys <= value.keys() for keys in _OF_OBJECTS):
            raise CheckpointError(
                f"{name} is a copy that state_dict() returns, which restores no object: give the object itself"
            )
        copy = {_key(name, key): _copied(item, f"{name}[{key!r}]", copies) for key, item in value.items()}
    else:
        copy = [_copied(item, f"{name}[{index}]", copies) for index, item in enumerate(value)]
    copies[id(value)] = copy
    return copy


def _key(name: str, key: Any) -> str:
    if type(key) is not str:
        raise CheckpointError(f"keys of {name} must be text, got {key!r}: write {str(key)!r}")
    return key


def _advice(value: Any) -> str:  # noqa: PLR0911 - one for each kind
    """Return advice on how a run resumes correctly: a copy that the loop does not change is useless."""
    if hasattr(value, "state_dict"):
        return "give it a name of its own in checkpoint="
    if isinstance(value, dict) and any(hasattr(item, "untyped_storage") for item in value.values()):
        return OF_TENSORS
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return f"keep a {'dict' if isinstance(value, dict) else 'list'} in its place"
    if isinstance(value, str):
        return "write str(...)"
    is_tensor = hasattr(value, "untyped_storage")
    if is_tensor and value.ndim:
        return OF_TENSORS
    if plain(value) is not value or getattr(value, "ndim", None) == 0 or isinstance(value, (int, float)):
        return f"keep float(...) or int(...) in its place{', or give the module that has it' * is_tensor}"
    if callable(value):
        return "leave it out"
    return "give checkpoint= an object with state_dict() and load_state_dict() that has it"


def fill(state: Any, saved: Any) -> None:
    """Restore a saved state into a dict or list, and into those nested dicts and lists that still exist."""
    if not (isinstance(saved, (dict, list)) and isinstance(state, dict) == isinstance(saved, dict)):
        raise TypeError(f"it is a {type(state).__name__}, saved was a {type(saved).__name__}")
    _fill(state, saved, {id(saved): state}, {id(state)})


def _fill(state: Any, saved: Any, objects: dict[int, Any], used: set[int]) -> None:
    """Restore a state recursively: `objects` maps the id of a saved dict or list to the restored object."""
    before = dict(state) if isinstance(state, dict) else dict(enumerate(state))
    state.clear()
    for key, value in saved.items() if isinstance(saved, dict) else enumerate(saved):
        item = value
        if isinstance(value, (dict, list)):
            item = objects.get(id(value))
            if item is None:
                item = before.get(key)
                if type(item) is not type(value) or id(item) in used:
                    item = type(value)()
                objects[id(value)] = item
                used.add(id(item))
                _fill(item, value, objects, used)
        if isinstance(state, dict):
            state[key] = item
        else:
            state.append(item)
