"""Run: one assignment of hyperparameters, a namedtuple whose names may be nested."""

import copy
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runmanager.core.values import check_device, check_groups, check_names, check_values
from runmanager.core.wording import did_you_mean
from runmanager.errors import GridError, Problems


class Run(tuple[Any, ...]):
    """One assignment of hyperparameters: a namedtuple that pickles.

    Its fields are the axes of the grid in order. `RunBuilder.get_runs` creates runs. Runs with different fields
    are never equal: ``[run for run in runs_b if run not in runs_a]``. With a field `opt.lr`, ``run.opt`` is a
    run with the field `lr`. A run of `expand` has its configuration as ``run.config``.

    Example:
        >>> run = make_run(("opt.lr", "device"), (0.1, "cpu"))
        >>> run.opt.lr, run._asdict()
        (0.1, {'opt.lr': 0.1, 'device': 'cpu'})
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _kinds: tuple[str, ...] = ()  # types of the fields in the whole grid
    _name: str = "run"  # name of the run in messages

    if TYPE_CHECKING:

        def _asdict(self) -> dict[str, Any]: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        names = dict.fromkeys(field.partition(".")[0] for field in self._fields)
        hint = "; runs of expand() have run.config" if name == "config" else ""
        step = did_you_mean(name, names, "it has")
        raise AttributeError(f"{self._name} has no hyperparameter {name!r}; {step}{hint}")

    def __eq__(self, other: object) -> bool:
        return not self._has_other_fields(other) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return self._has_other_fields(other) or tuple.__ne__(self, other)

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    def _has_other_fields(self, other: object) -> bool:
        return isinstance(other, Run) and other._fields != self._fields

    def __reduce__(self) -> tuple[Callable[..., "Run"], tuple[Any, ...]]:
        config = (vars(self)["config"],) if hasattr(self, "__dict__") else ()
        return make_run, (self._fields, tuple(self), self._kinds, self._name, *config)


def make_run(
    names: tuple[str, ...],
    values: Iterable[Any],
    kinds: tuple[str, ...] = (),
    name: str = "run",
    *config: Any,
) -> Run:
    """Create a run from its fields, their values and kinds; for `expand`, with its configuration."""
    run: Run = _run_type(names, kinds, name, bool(config))._make(values)
    if config:
        (vars(run)["config"],) = config
    return run


def params_of(run: Any) -> dict[str, Any]:
    """Return the hyperparameters of a run, which may be any namedtuple or a mapping."""
    if isinstance(run, Run):
        # reading by tuple.__iter__ does not count as reading the values
        run = dict(zip(run._fields, tuple.__iter__(run), strict=True))
    params = run._asdict() if hasattr(run, "_asdict") else run
    if not isinstance(params, Mapping):
        raise GridError([f"a run is a namedtuple or a mapping of hyperparameters, got {run!r}"])
    problems = Problems([*check_names(params), *check_groups(params)])
    problems += check_values(params.items())
    if not problems and "device" in params and (problem := check_device(params["device"])):
        problems.append(problem)
    problems.raise_if_any()
    return dict(params)


def copy_of(run: Run) -> Run:
    """Return a copy of a run for code that may modify its values."""
    try:
        return copy.deepcopy(run)
    except Exception:  # noqa: BLE001 - whatever the class of a value does
        return run


def device_of(run: Run) -> str:
    """Return the device of a run, such as ``"cuda:1"``; ``"cpu"`` without an axis `device`."""
    return str(getattr(run, "device", "cpu"))


def kinds_of(run: Any) -> dict[str, str]:
    """Return the type of each hyperparameter in the grid of a run; empty if the run is not from RunBuilder."""
    if not isinstance(run, Run):
        return {}
    return dict(zip(run._fields, run._kinds, strict=False))  # noqa: SLF001 - of this module


@lru_cache(maxsize=256)
def _run_type(names: tuple[str, ...], kinds: tuple[str, ...], name: str, has_config: bool) -> Any:
    # the base Run comes second, so that fields override its __getattr__, and its __reduce__ overrides the
    # __reduce__ of tuple
    fields = namedtuple("Run", names, rename=True)  # type: ignore[misc]  # noqa: PYI024 - the grid's names
    members: dict[str, Any] = {"_kinds": kinds, "_name": name, "__reduce__": Run.__reduce__}
    members |= {} if has_config else {"__slots__": ()}
    if fields._fields != names:
        members |= _nested_members(names, fields._fields, kinds, name)
    return type("Run", (fields, Run), members)


def _nested_members(
    names: tuple[str, ...], renamed: tuple[str, ...], kinds: tuple[str, ...], name: str
) -> dict[str, Any]:
    """Return the members of a namedtuple with dotted field names, with nested runs."""
    members: dict[str, Any] = {
        "_fields": names, "__match_args__": names, "__repr__": _repr,
        "_replace": _replace, "__replace__": _replace,
    }  # fmt: skip
    below: dict[str, list[int]] = {}
    for index, field in enumerate(names):
        if "." in field:
            below.setdefault(field.partition(".")[0], []).append(index)
        if renamed[index] != field:
            members[field] = _item(index)
    for group, indexes in below.items():
        fields = tuple(names[index].partition(".")[2] for index in indexes)
        its_kinds = tuple(kinds[index] for index in indexes) if kinds else ()
        members[group] = _group(_run_type(fields, its_kinds, f"{name}.{group}", False), indexes)
    return members


def _item(index: int) -> property:
    return property(lambda run: tuple.__getitem__(run, index))


def _group(its_type: Any, indexes: Sequence[int]) -> property:
    get = tuple.__getitem__
    return property(lambda run: tuple.__new__(its_type, [get(run, index) for index in indexes]))


def _repr(run: Run) -> str:
    pairs = zip(run._fields, run, strict=True)
    return f"Run({', '.join(f'{name}={value!r}' for name, value in pairs)})"


def _replace(run: Run, /, **values: Any) -> Run:
    fields = run._fields
    if unknown := [name for name in values if name not in fields]:
        raise ValueError(f"Got unexpected field names: {unknown!r}")  # any namedtuple raises this error
    return type(run)._make(map(values.pop, fields, run))  # type: ignore[attr-defined,no-any-return]
