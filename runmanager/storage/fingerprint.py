"""What results depend on beside the hyperparameters: code, data, library versions; and what of it changed."""

import ast
import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runmanager.storage import provenance

Fingerprint = Mapping[str, Mapping[str, str]]
"""Kind (code, data, versions) -> name -> hash or version."""

_MOST_BYTES = 1 << 26  # of a tensor that are hashed: larger ones are sampled evenly


def fingerprint(train: Callable[..., Any], data: Any = None) -> Fingerprint:
    """Take the fingerprint of a training function.

    Args:
        train: Hashed with every function and class of the user's own files that it names, however deep;
            comments, docstrings and layout do not count.
        data: What it trains on: tensors, a dataset, or text that stands for it; None to leave it out.
    """
    code = {name: _hash_of_code(part) for name, part in sorted(_parts(train).items())}
    found: dict[str, Mapping[str, str]] = {"code": code, "versions": provenance.versions()}
    return found if data is None else {**found, "data": {"data": _hash_of_data(data)}}


def changes(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Say what differs between two fingerprints; a kind that either lacks is not compared.

    >>> changes({"versions": {"torch": "2.14"}}, {"versions": {"torch": "2.15"}})
    ['torch 2.14 -> 2.15']
    """
    found: list[str] = []
    for kind in ("code", "data", "versions"):
        old, new = before.get(kind), now.get(kind)
        if old is None or new is None:
            continue
        for name in sorted({*old, *new}):
            if old.get(name) == new.get(name):
                continue
            if kind == "versions":
                found.append(f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}")
            else:
                found.append("the data" if kind == "data" else f"code of {name}")
    return found


def _parts(train: Callable[..., Any]) -> dict[str, Any]:
    """Find the functions and classes that a function consists of, by name, itself first."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [_unwrapped(train)]
    while waiting:
        part = waiting.pop()
        name = getattr(part, "__qualname__", type(part).__qualname__)
        if name not in found and (not found or _is_users(part)):
            found[name] = part
            waiting += _named_in(part)
    return found


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
        for name in _names(function.__code__):
            value = function.__globals__.get(name)
            if callable(value):
                yield _unwrapped(value)
        for cell in function.__closure__ or ():
            if inspect.isfunction(cell.cell_contents) or inspect.isclass(cell.cell_contents):
                yield cell.cell_contents
    if inspect.isclass(part):
        yield from part.__bases__


def _methods(part: Any) -> list[types.FunctionType]:
    members = vars(part).values() if inspect.isclass(part) else ()
    plain = (getattr(member, "__func__", member) for member in members)
    return [member for member in plain if isinstance(member, types.FunctionType)]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_users(part: Any) -> bool:
    module = sys.modules.get(getattr(part, "__module__", ""), None)
    file = getattr(module, "__file__", None)
    if file is None:  # a notebook's cell, or built in
        return getattr(part, "__module__", "") == "__main__"
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _libraries())


@functools.cache
def _libraries() -> list[Path]:
    folders = {Path(__file__).parents[1]}
    folders |= {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [folder.resolve() for folder in folders]


def _hash_of_code(part: Any) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        content = ast.dump(_without_docstrings(tree))
    except (OSError, TypeError, SyntaxError):
        code = getattr(part, "__code__", None)
        content = repr((code.co_code, code.co_names, code.co_consts)) if code else repr(part)
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                del body[0]
    return tree


def _hash_of_data(data: Any) -> str:
    if isinstance(data, str):
        return data
    tensors = [data] if hasattr(data, "untyped_storage") else getattr(data, "tensors", None)
    if tensors is None and hasattr(data, "images") and hasattr(data, "labels"):
        tensors = [data.images, data.labels]
    if tensors is None:
        length = len(data) if hasattr(data, "__len__") else ""
        # a dataset's repr names its folder and transforms
        content = f"{type(data).__qualname__} {length} {data!r}".partition(" at 0x")[0]
        return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]
    return "-".join(_hash_of_tensor(tensor) for tensor in tensors)


def _hash_of_tensor(tensor: Any) -> str:
    flat = tensor.detach().cpu().reshape(-1)
    step = -(-flat.numel() * flat.element_size() // _MOST_BYTES)
    sample = flat[:: max(1, step)].contiguous()
    import torch

    content = sample.view(torch.uint8).numpy() if sample.numel() else b""
    return f"{zlib.crc32(content):08x}{tuple(tensor.shape)}{tensor.dtype}".replace(" ", "")
