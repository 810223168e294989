"""Detection of axes that the training function never reads, or that it reads and the grid lacks."""

import ast
import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from runmanager.close_names import closest
from runmanager.run import Run
from runmanager.session.train_call import parameters_of
from runmanager.storage.fingerprint import reached_source
from runmanager.storage.source import attributes_in, definitions_of, is_users_module, layers, source_of
from runmanager.storage.user_code import location_in
from runmanager.wording import listed

_READ_BY_THE_GRID = "device"  # the grid itself reads this axis for each run
_OF_ALL = (
    "__iter__", "__getitem__", "__reduce__", "__repr__", "__hash__", "__eq__", "__ne__", "__lt__", "__le__",
    "__gt__", "__ge__", "__contains__", "__add__", "__mul__", "_asdict", "_replace", "count", "index",
)  # fmt: skip
"""Methods of a run that read all values of the run."""
# a call does not execute the body
_DELAYED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Reads:
    """Records the hyperparameters that `train` reads; `run` is a proxy of the original run.

    An access to all values, such as `_asdict`, iteration or pickling, counts as reading all names.
    """

    def __init__(self, run: Run) -> None:
        self._fields = run._fields
        self._read: set[str] = set()
        watched = _watched(run, "", self._read)
        self.run: Run = tuple.__new__(watched, run)
        if hasattr(run, "__dict__"):
            vars(self.run).update(vars(run))

    @property
    def unread(self) -> tuple[str, ...]:
        """The hyperparameters, except the device, that were not read."""
        return tuple(name for name in self._fields if name not in self._read and name != _READ_BY_THE_GRID)


def _watched(run: Run, prefix: str, read: set[str]) -> Any:
    """Return a subclass of a run's type that records the names read, each with a prefix."""
    base: Any = type(run)
    whole = {prefix + field for field in base._fields}
    members: dict[str, Any] = {} if hasattr(run, "__dict__") else {"__slots__": ()}
    members |= {name: _noting(getattr(base, name), whole, read) for name in _OF_ALL}
    for field in base._fields:
        members[field] = property(_noting(getattr(base, field).__get__, {prefix + field}, read))
        group = field.partition(".")[0]
        if group != field and group not in members:
            below = _watched(getattr(run, group), f"{prefix}{group}.", read)
            members[group] = _group(getattr(base, group), below)
    if "config" in getattr(run, "__dict__", ()):
        members["config"] = property(_noting(lambda self: vars(self)["config"], whole, read))
    return type("Run", (base,), members)


def _noting(method: Callable[..., Any], names: Collection[str], read: set[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        read.update(names)
        return method(*args, **kwargs)

    return call


def _group(attribute: Any, below: Any) -> property:
    return property(lambda run: tuple.__new__(below, attribute.__get__(run)))


def without_named(unread: Sequence[str], train: Callable[..., object]) -> tuple[str, ...]:
    """Return the names that do not occur in the user's source files that are loaded.

    A name that occurs may be read in another run, by code that is chosen by name or imported later. The process
    of a worker has loaded more modules than the process of the grid; the process of the grid has loaded more of
    the script.
    """
    if not unread:
        return ()
    modules: list[Any] = [module for module in list(sys.modules.values()) if is_users_module(module)]
    names = set().union(*(source_of(part).attributes for part in (*modules, *layers(train))))
    return tuple(name for name in unread if name not in names and not names.issuperset(name.split(".")))


def _read_off(train: Callable[..., object]) -> set[str]:
    """Return the attributes that the user's code reads of variables named like the run in `train`."""
    its_name = next(iter(parameters_of(train)), "run")
    names: set[str] = set()
    for node in (node for tree in map(ast.parse, reached_source(train)) for node in ast.walk(tree)):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == its_name:
                names.add(attribute)
            case ast.Call(args=[ast.Name(id=name), ast.Constant(value=str(text)), *_]) if name == its_name:
                names.add(text)  # the text is an argument of getattr
    return names


def unread_axes(
    unread: Iterable[str], train: Callable[..., object], *, repeats: Collection[str] = (), number: int = 1
) -> str:
    """Return a sentence about axes that a training function never reads, "" if there are none.

    Names that occur in the user's code are left out, as another run may read them.

    Args:
        unread: The hyperparameters that one run did not read.
        train: The training function.
        repeats: The repeat axes, which need not be read.
        number: The number of the run.
    """
    suspects = without_named([name for name in unread if name not in repeats], train)
    names = attributes_in(map(ast.parse, reached_source(train)), texts=True) if suspects else set()
    unused = [name for name in suspects if name not in names and not names.issuperset(name.split("."))]
    if not unused:
        return ""
    read = _read_off(train)
    meant = {name: closest(name, read) for name in unused}
    hints = [f"{name!r}" + (f" (did you mean {meant[name]!r}?)" if meant[name] else "") for name in unused]
    if len(unused) == 1:
        step = f"its values change nothing; read run.{unused[0]}, or leave it out"
        return f"run {number} never read the axis {hints[0]}: {step}"
    step = "their values change nothing; read them, or leave them out"
    return f"run {number} never read the axes {listed(hints)}: {step}"


def missing_axes(train: Callable[..., object], runs: Sequence[Run]) -> list[str]:
    """Return a sentence about each name that a training function reads of its run, and that no run has.

    Only certain reads count: reads without a condition, in the function and in functions called with the run.
    """
    function = train
    while isinstance(function, functools.partial) and not function.args:
        function = function.func
    function = function.__func__ if isinstance(function, types.MethodType) else function
    # code may set further attributes of runs of expand()
    if not isinstance(function, types.FunctionType) or any(hasattr(run, "__dict__") for run in runs):
        return []
    problems: dict[str, str] = {}
    for name, location in _certain_reads(function, [*parameters_of(train)][:2], ()):
        if runs and name not in problems and not any(hasattr(run, name) for run in runs):
            try:
                getattr(runs[0], name)
            except AttributeError as error:
                problems[name] = f"{error} (in {location})"
    return list(problems.values())


def _certain_reads(
    function: types.FunctionType, parameters: Sequence[str], callers: Sequence[object]
) -> Iterator[tuple[str, str]]:
    """Yield the names that each call of a function reads of its run, with their lines.

    `parameters` are those for the run and, if there is one, for the manager.
    """
    code = function.__code__
    (node, *others) = [*definitions_of(function), None]
    is_plain = isinstance(node, ast.FunctionDef) and len(others) == 1 and not hasattr(function, "__wrapped__")
    if not is_plain or code.co_flags & _DELAYED or function in callers or not parameters:
        return
    assert isinstance(node, ast.FunctionDef)
    run, inside = parameters[0], list(ast.walk(node))
    if any(_binds(each, run) for each in inside):
        return
    loaded = {*code.co_names}  # the file may have changed since
    own = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
    texts = {each.value for each in inside if isinstance(each, ast.Constant)}  # arguments of hasattr or getattr
    for each in _certain(node.body, parameters[1:]):
        match each:
            case ast.Attribute(ast.Name(id), name, ast.Load()) if id == run and name not in texts:
                if name in loaded and name[0] != "_":
                    yield name, location_in(function, each.lineno)
            case ast.Call(ast.Name(id)) if id in loaded - own:
                called = function.__globals__.get(id)
                if isinstance(called, types.FunctionType):
                    yield from _certain_reads(called, _parameters_for(run, each, called), [*callers, function])


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a node gives a name another value."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    names = (getattr(node, attribute, None) for attribute in ("name", "asname", "rest"))
    return name in (str(each).partition(".")[0] for each in names)


def _parameters_for(variable: str, call: ast.Call, function: types.FunctionType) -> list[str]:
    """Return the parameters of a function that get a variable in a call."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return []
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    pairs = [*zip(names, call.args, strict=False), *((each.arg or "", each.value) for each in call.keywords)]
    return [name for name, value in pairs if isinstance(value, ast.Name) and value.id == variable][:1]


def _certain(body: Iterable[ast.stmt], managers: Sequence[str]) -> Iterator[ast.AST]:
    """Yield the nodes that are evaluated without a condition, up to a statement that may leave the function.

    Only blocks of `with manager.run(...)` are entered.
    """
    for statement in body:
        match statement:
            case ast.With(items=[ast.withitem(ast.Call(ast.Attribute(ast.Name(id), "run")) as call)]):
                yield from _evaluated(call)
                yield from _certain(statement.body if id in managers else (), managers)
            case ast.If(test=first) | ast.While(test=first) | ast.For(iter=first) | ast.Match(subject=first):
                yield from _evaluated(first)
            case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Return() | ast.Raise():
                yield from _evaluated(statement)
        if any(isinstance(node, ast.Return | ast.Raise) for node in ast.walk(statement)):
            return


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement or an expression that are evaluated without a condition."""
    yield node
    match node:
        case ast.Lambda():
            inner: Iterable[ast.AST] = []
        case ast.IfExp(test=first) | ast.BoolOp(values=[first, *_]) | ast.Compare(left=first):
            inner = [first]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            inner = [node.generators[0].iter]
        case _:
            inner = ast.iter_child_nodes(node)
    for each in inner:
        yield from _evaluated(each)
