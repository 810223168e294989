"""Run: one assignment of hyperparameters, a namedtuple whose names may be nested, known by its id."""

import copy
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from runmanager.core.values import check_names, check_values, identity
from runmanager.core.wording import did_you_mean
from runmanager.errors import GridError, Problems


class Run(tuple[Any, ...]):  # noqa: SLOT001 - carries its id, and its configuration
    """One assignment of hyperparameters: a namedtuple that pickles.

    Its fields are the axes of the grid in order. `RunBuilder.get_runs` creates runs. Runs with different fields
    are never equal: ``[run for run in runs_b if run not in runs_a]``. With a field `opt.lr`, ``run.opt`` is a
    run with the field `lr`. A run of `expand` has its configuration as ``run.config``.

    Example:
        >>> run = make_run(("opt.lr", "device"), (0.1, "cpu"))
        >>> run.opt.lr, run._asdict()
        (0.1, {'opt.lr': 0.1, 'device': 'cpu'})
    """

    _fields: tuple[str, ...] = ()
    _name: str = "run"  # name of the run in messages

    if TYPE_CHECKING:

        def _asdict(self) -> dict[str, Any]: ...

        @classmethod
        def _make(cls, values: Iterable[Any]) -> "Run": ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        step = did_you_mean(name, (field.partition(".")[0] for field in self._fields), "it has")
        step += "; runs of expand() have run.config" * (name == "config")
        raise AttributeError(f"{self._name} has no hyperparameter {name!r}; {step}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a run cannot be changed: write {self._name}._replace({name}={value!r:.60})")

    def __eq__(self, other: object) -> bool:
        has_other_fields = isinstance(other, Run) and other._fields != self._fields
        return not has_other_fields and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"Run({pairs})"

    def __reduce__(self) -> tuple[Callable[..., "Run"], tuple[Any, ...], dict[str, Any]]:
        return make_run, (self._fields, tuple(self)), vars(self)

    def _replace(self, /, **values: Any) -> "Run":
        run = self._make(map(values.pop, self._fields, self))
        if values:
            raise ValueError(f"Got unexpected field names: {[*values]!r}")  # any namedtuple raises this error
        id_of(run)
        return run

    __replace__ = _replace


RunLike: TypeAlias = Run | Mapping[str, Any]
"""A run, or its hyperparameters in a loop without a grid."""


def make_run(names: tuple[str, ...], values: Iterable[Any]) -> Run:
    """Create a run from its fields and their values."""
    run: Run = _run_type(names)._make(values)
    return run


@lru_cache(maxsize=256)
def _run_type(names: tuple[str, ...]) -> Any:
    # the fields come before tuple, as a field may have the name of its methods, such as count
    fields = namedtuple("Run", names, rename=True)  # type: ignore[misc]  # noqa: PYI024 - the grid's names
    members: dict[str, Any] = {"_fields": names, "__match_args__": names}
    for index, name in enumerate(names):
        group, dot, _ = name.partition(".")
        if dot:
            members[group] = property(partial(_part, group))
        if fields._fields[index] != name:
            members[name] = property(itemgetter(index))
    return type("Run", (Run, fields), members)


def _part(group: str, run: Run) -> Run:
    """Return the run of the fields below a dotted name."""
    dotted = f"{group}."
    below = {
        name.removeprefix(dotted): value for name, value in run._asdict().items() if name.startswith(dotted)
    }
    part = make_run(tuple(below), below.values())
    vars(part)["_name"] = f"{run._name}.{group}"  # noqa: SLF001 - a function, as Run has no names but fields
    return part


def id_of(run: Any) -> str:
    """Return the id of a run, kept in copies even if a value changes, or of a mapping of hyperparameters."""
    carried = vars(run) if isinstance(run, Run) else {}
    if "_id" not in carried:
        params = params_of(run)
        problems = Problems(() if isinstance(run, Run) else check_names(params))
        problems += check_values(params.items())
        problems.raise_if_any()
        carried["_id"] = identity(params)
    return str(carried["_id"])


def identified(run: Any) -> Any:
    """Return a run with the id of its values as they are now, for a loop without a grid."""
    if isinstance(run, Run):
        run = run._make(run)  # does not carry the id
    id_of(run)
    return run


def params_of(run: Any) -> Mapping[str, Any]:
    """Return the hyperparameters of a run, which may be any namedtuple or a mapping."""
    params: Any = run._asdict() if hasattr(run, "_asdict") else run
    if not isinstance(params, Mapping):
        raise GridError(f"a run is a namedtuple or a mapping of hyperparameters, got {run!r}")
    return params


def copy_of(run: Run) -> Run:
    """Return a copy of a run for code that may modify its values, the run itself if it cannot be copied."""
    try:
        values, carried = copy.deepcopy((tuple(run), vars(run)))
    except Exception:  # noqa: BLE001 - whatever the class of a value does
        return run
    copied = run._make(values)
    vars(copied).update(carried)
    return copied


def device_of(run: Run) -> str:
    """Return the device of a run, such as ``"cuda:1"``; ``"cpu"`` without an axis `device`."""
    return str(getattr(run, "device", "cpu"))
