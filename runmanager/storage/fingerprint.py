"""What results depend on beside the hyperparameters, code, data, versions and commit, and what has changed."""

import contextlib
import dis
import functools
import hashlib
import inspect
import itertools
import platform
import subprocess
import sys
import sysconfig
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runmanager import __version__

Fingerprint = Mapping[str, Mapping[str, str]]
"""Kind (code, data, versions) -> name -> hash or version."""

_MOST_BYTES = 1 << 26  # of a tensor that are hashed: larger ones are sampled evenly
_MOST_PARTS = 8  # of data that have a hash each
_PARTS = (("tensors",), ("images", "labels"), ("dataset", "indices"), ("dataset",))
"""What a TensorDataset, an ImageTensors, a Subset and a DataLoader consist of."""

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_MISSING = object()


def fingerprint(train: Callable[..., Any], data: Any = None) -> Fingerprint:
    """Take the fingerprint of a training function.

    `train` is hashed as compiled, with every function, class and constant of the user's own files that it
    loads, however deep; of lists and dicts the functions in them count, not the constants. Comments, docstrings
    and layout do not count, and of a partial's arguments text does not, which mostly is a path.

    `data` is tensors, arrays, a dataset of them, or text that stands for it; of anything else the type, length
    and repr count.
    """
    code = {name: _hash_of_code(part) for name, part in sorted(_parts(train).items())}
    if isinstance(train, functools.partial):
        arguments = [*train.args, *sorted(train.keywords.items())]
        code["its arguments"] = _short_hash(repr([v for v in arguments if _is_plain(v) and not _has_text(v)]))
    kinds: dict[str, Mapping[str, str]] = {"code": code, "versions": versions()}
    return kinds if data is None else {**kinds, "data": {"data": _hash_of_data(data)}}


def changes(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Return the differences between two fingerprints; a kind that either lacks is not compared.

    Of versions the first two numbers count: the cpu and the CUDA build of a release are the same.

    >>> changes({"versions": {"torch": "2.14.1+cpu"}}, {"versions": {"torch": "2.15.0"}})
    ['torch 2.14.1+cpu -> 2.15.0']
    """
    differences: list[str] = []
    for kind in ("code", "data", "versions"):
        old, new = before.get(kind), now.get(kind)
        if old is None or new is None:
            continue
        for name in sorted({*old, *new}):
            if old.get(name) == new.get(name):
                continue
            if kind != "versions":
                differences.append("the data" if kind == "data" else f"code of {name}")
            elif _release(old.get(name, "")) != _release(new.get(name, "")):
                differences.append(f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}")
    return differences


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    versions = {"python": platform.python_version(), "runmanager": __version__}
    for name in ("torch", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@functools.cache
def commit() -> str:
    """Return the git commit of the working directory, with ``+changes`` if files differ; empty without git."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return ""
    return f"{head}+changes" if _git("status", "--porcelain", "--untracked-files=no") else head


def command() -> str:
    """Return the name of the program, without its arguments, which may hold secrets."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""


def _release(number: str) -> list[str]:
    return number.partition("+")[0].split(".")[:2]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607 - whichever git the user has
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _parts(train: Callable[..., Any]) -> dict[str, Any]:
    """Find the functions and classes that a function consists of, by name, itself first."""
    parts: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[Any] = [_unwrapped(train)]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen and (not parts or _is_users(part)):
            seen.add(id(part))
            name, number = part.__qualname__, 1
            while name in parts:  # several modules have one
                number += 1
                name = f"{part.__qualname__} ({number})"
            parts[name] = part
            waiting += _named_in(part)
    return parts


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)  # what functools.cache and wraps put round it
    if isinstance(function, types.MethodType):
        return function.__func__
    return function if hasattr(function, "__qualname__") else type(function)


def _named_in(part: Any) -> Iterator[Any]:
    functions = [part] if isinstance(part, types.FunctionType) else _methods(part)
    for function in functions:
        code, scope = function.__code__, function.__globals__
        loaded = {name: scope[name] for name in _loaded(code) if name in scope}
        values = [*_looked_up(loaded.values(), list(_names(code)), set()), *_enclosed(function)]
        inside = (item for value in values for item in _items(value, depth=3))
        yield from (_unwrapped(value) for value in inside if callable(value))
    if inspect.isclass(part):
        yield from part.__bases__


def _looked_up(values: Iterable[Any], names: Sequence[str], seen: set[int]) -> Iterator[Any]:
    """Yield values, and instead of a module its members of these names."""
    for value in values:
        if not isinstance(value, types.ModuleType):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            inside = vars(value)
            yield from _looked_up([inside[name] for name in names if name in inside], names, seen)


def _enclosed(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing was put into it yet
            yield cell.cell_contents


def _methods(part: Any) -> list[types.FunctionType]:
    members = vars(part).values() if inspect.isclass(part) else ()
    inner = ("__func__", "fget", "func")  # of class methods, properties and cached properties
    plain = [getattr(member, name, None) for member in members for name in inner]
    return [member for member in (*members, *plain) if isinstance(member, types.FunctionType)]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and that of the functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    return itertools.chain.from_iterable(map(dis.get_instructions, _codes(code)))


def _names(code: types.CodeType) -> Iterator[str]:
    for part in _codes(code):
        yield from part.co_names


def _loaded(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that code loads; `co_names` has those of attributes too."""
    return (step.argval for step in _instructions(code) if step.opname in _LOADS)


def _constants(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the constants that code loads, also as ``module.NAME`` from modules of the user."""
    value: Any = None
    for step in _instructions(code):
        is_attribute = step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType)
        if step.opname not in _LOADS and not is_attribute:
            value = None
            continue
        value = (vars(value) if is_attribute else scope).get(step.argval, _MISSING)
        if value is not _MISSING and _is_plain(value):
            yield step.argval, value
        if not (isinstance(value, types.ModuleType) and _is_users_file(value)):
            value = None


def _is_users(part: Any) -> bool:
    module = sys.modules.get(getattr(part, "__module__", ""), None)
    if getattr(module, "__file__", None) is None:  # a notebook's cell, or built in
        return getattr(part, "__module__", "") == "__main__"
    return _is_users_file(module)


def _is_users_file(module: types.ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and not any(Path(file).resolve().is_relative_to(folder) for folder in _libraries())


@functools.cache
def _libraries() -> list[Path]:
    folders = {Path(__file__).parents[1]}
    folders |= {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [folder.resolve() for folder in folders]


def _items(value: Any, depth: int) -> Iterator[Any]:
    """Yield a value, or what is in it if it is a list, tuple or mapping, as of networks by name."""
    if depth and isinstance(value, (list, tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _items(item, depth - 1)
    else:
        yield value


def _hash_of_code(part: Any) -> str:
    """Hash the code as it is executed; its source may have changed since."""
    functions = [part] if isinstance(part, types.FunctionType) else _methods(part)
    content = [part.__qualname__, *(_compiled(function.__code__) for function in functions)]
    for function in functions:
        content += sorted({*map(repr, _constants(function.__code__, function.__globals__))})
        content += [value for value in _enclosed(function) if _is_plain(value)]
    if inspect.isclass(part):
        content += [pair for pair in vars(part).items() if _is_plain(pair[1]) and not pair[0].startswith("__")]
    return _short_hash(repr(content))


def _compiled(code: types.CodeType) -> tuple[Any, ...]:
    """Return what compiled code does, without its docstring; its own repr would have addresses."""
    first = code.co_consts[:1]
    has_docstring = bool(first) and isinstance(first[0], str) and code.co_name != "<lambda>"
    constants = (
        _compiled(constant) if isinstance(constant, types.CodeType)
        # the order of a set differs from process to process
        else sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)
        for constant in code.co_consts[has_docstring:]
    )  # fmt: skip
    return code.co_code, code.co_names, *constants


def _is_plain(value: Any) -> bool:
    """Whether a value is a constant; what can be changed in place may be a record of what was done."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))


def _has_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, tuple) and isinstance(value[-1], str))


def _hash_of_data(data: Any) -> str:
    if isinstance(data, str):
        return data
    if hasattr(data, "untyped_storage"):
        return _hash_of_tensor(data)
    if _is_numbers(data):
        import torch

        return _hash_of_tensor(torch.as_tensor(data))
    parts = _parts_of_data(data)
    if parts is not None:
        joined = "-".join(map(_hash_of_data, parts))
        return joined if len(parts) <= _MOST_PARTS else _short_hash(joined)
    length = len(data) if hasattr(data, "__len__") else ""
    # a dataset's repr names its folder and transforms
    return _short_hash(f"{type(data).__qualname__} {length} {data!r}".partition(" at 0x")[0])


def _is_numbers(data: Any) -> bool:
    if hasattr(data, "__array_interface__"):
        return str(data.dtype.kind) in "biufc"
    return isinstance(data, list) and bool(data) and all(isinstance(item, int) for item in data)


def _parts_of_data(data: Any) -> Sequence[Any] | None:
    """Return what data consists of, None if that is not known."""
    if isinstance(data, Mapping):
        return [part for item in data.items() for part in item]
    if isinstance(data, (list, tuple)):
        return data
    for names in _PARTS:
        if all(hasattr(data, name) for name in names):
            return [getattr(data, name) for name in names]
    return None


def _short_hash(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]


def _hash_of_tensor(tensor: Any) -> str:
    flat = tensor.detach().cpu().reshape(-1)
    step = -(-flat.numel() * flat.element_size() // _MOST_BYTES)
    sample = flat[:: max(1, step)].contiguous()
    import torch

    content = sample.view(torch.uint8).numpy() if sample.numel() else b""
    return f"{zlib.crc32(content):08x}{tuple(tensor.shape)}{tensor.dtype}".replace(" ", "")
