"""The variables of a running training function, and digests of everything that they reach.

Resuming itself reads no frames. The check of resuming does, in its own process: what a loop changes, and
checkpoint= does not name, is known to the loop's variables only.
"""

import functools
import hashlib
import itertools
import random
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from runmanager.session.source_lines import Lines
from runmanager.session.train_call import call
from runmanager.storage.user_code import is_users_file

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.device, torch.dtype, torch.Size, range)
_WITHOUT_STATE = (types.ModuleType, types.BuiltinFunctionType, types.MethodWrapperType, property)
_COMMUNICATION = (
    "torch._C._distributed_c10d",
    "torch.distributed.distributed_c10d",
)  # without state of training
_MOST_BYTES = 1 << 22  # the maximum size of a tensor that is read as a whole
_NUM_SAMPLED = 1 << 19  # number of evenly spaced elements of a larger tensor
_MOST_NODES = 20_000
_LIBRARY_DEPTH = 3  # the maximum depth within objects of libraries
_PACKAGE = __name__.partition(".")[0]


class Leaf(NamedTuple):
    """The digest of one value.

    Attributes:
        digest: The digest of the content.
        kind: The name of the value's type.
        part: The name of the part of checkpoint= that contains the value, "" if there is none.
    """

    digest: str
    kind: str
    part: str


class Variable(NamedTuple):
    """A variable of the user's code.

    Attributes:
        value: The value.
        line: The file and line that create the variable, such as "train.py:14"; "" if unknown.
        is_read: Whether the code may read the variable before it assigns the variable again.
        is_of_loop: Whether a loop creates the variable, so that a resumed run may lack it.
        is_local: Whether it is a variable of a function.
    """

    value: Any
    line: str
    is_read: bool
    is_of_loop: bool = False
    is_local: bool = False


class Reached(NamedTuple):
    """What the variables reach.

    Attributes:
        leaves: Path, such as "average.shadow['weight']" -> digest.
        hidden: Path of an object whose state cannot be read -> its type.
        iterators: The paths of hidden objects that are iterators.
        stateful: Path of a network, optimizer, or other possible part outside checkpoint= -> the object.
    """

    leaves: dict[str, Leaf]
    hidden: dict[str, str]
    iterators: list[str]
    stateful: dict[str, Any]


def digest_of(value: object) -> str:
    """Return a digest of a tensor, an array, or nested plain values.

    Of tensors above 4 MiB, 524,288 evenly spaced elements count.

    >>> digest_of(torch.zeros(2)) == digest_of(torch.zeros(2)), digest_of([1]) == digest_of([1.0])
    (True, False)
    """
    return hashlib.blake2b(b"".join(_bytes(value)), digest_size=8).hexdigest()


def _bytes(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        content = value.detach()
        content = content.to_dense() if content.layout != torch.strided else content
        content = content.resolve_conj().resolve_neg()
        if content.nbytes > _MOST_BYTES:
            content = content.reshape(-1)[:: content.numel() // _NUM_SAMPLED + 1]
        yield content.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype}{value.shape}".encode()
        yield value.reshape(-1)[
            :: value.size // _NUM_SAMPLED + 1 if value.nbytes > _MOST_BYTES else 1
        ].tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key).encode("utf-8", "replace")
            yield from _bytes(item)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__}{len(value)}".encode()
        for item in value:
            yield from _bytes(item)
    elif isinstance(value, AbstractSet):
        yield from sorted(repr(item).encode("utf-8", "replace") for item in value)
    elif _is_at_address(value):
        yield type(value).__name__.encode()
        yield from _bytes(vars(value))
    else:
        yield repr(value).encode("utf-8", "replace")


def _is_at_address(value: object) -> bool:
    """Whether an object's text is its address, so that its attributes are compared."""
    return hasattr(value, "__dict__") and not isinstance(value, type) and " at 0x" in repr(value)


def user_variables(modules: Mapping[str, Lines]) -> dict[str, Variable]:
    """Return the variables that the user's frames and modules have now, those of the innermost frame first.

    `modules` caches the source of files.
    """
    variables: dict[str, Variable] = {}
    frames = list(_user_frames())
    for frame in frames:
        lines = modules[frame.f_code.co_filename]
        for name, value in frame.f_locals.items():
            variables.setdefault(name, Variable(value, *lines.of_local(name, frame), is_local=True))
    files = {frame.f_code.co_filename: frame.f_globals for frame in frames}
    for path, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        outermost = getattr(sys.modules.get(path.partition(".")[0]), "__file__", None) or file  # looked up once
        if isinstance(file, str) and file.endswith(".py") and is_users_file(str(outermost)):
            files.setdefault(file, vars(module))
    for file, names in files.items():
        for name, value in [*names.items()]:
            if not name.startswith("__"):
                variables.setdefault(name, Variable(value, modules[file].of_global(name), True))
    return variables


def _user_frames() -> Iterator[types.FrameType]:
    """Yield the frames of the user's code in the call of the training function, innermost first."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe() is the same
    while frame.f_back is not None and frame.f_code is not call.__code__:
        file = frame.f_code.co_filename
        is_train = frame.f_back.f_code is call.__code__
        if is_train or is_users_file(file) or (file.startswith("<") and not file.startswith("<frozen")):
            yield frame
        frame = frame.f_back


def reached(variables: Mapping[str, Variable], parts: Mapping[str, Any]) -> Reached:
    """Return digests of everything that variables reach; an object that several reach has its shortest path.

    The variables that loops create come last, so that paths do not depend on them.
    """
    late = [(name, one.value) for name, one in variables.items() if one.is_of_loop]
    early = [(name, one.value) for name, one in variables.items() if not one.is_of_loop]
    early += [(f"checkpoint[{name!r}]", part) for name, part in parts.items()]
    result = Reached({}, {}, [], {})
    seen: dict[int, Any] = {}  # the objects are kept, so that no other object gets their identity
    local = {name for name, one in variables.items() if one.is_local}
    for group in (early, late):
        _reach(group, {id(part): name for name, part in parts.items()}, seen, result)
    # other modules have imported many objects that no loop uses
    for path in [path for path in result.hidden if re.split(r"\W", path)[0] not in local]:
        del result.hidden[path]
    return result


def _reach(
    roots: Sequence[tuple[str, Any]], names: Mapping[int, str], seen: dict[int, Any], result: Reached
) -> None:
    """Add what named objects reach, breadth first; `names` are those of parts by their identity."""
    queue = deque((name, value, "", False, 0) for name, value in roots)
    while queue and len(seen) < _MOST_NODES:
        path, value, part, is_inside, depth = queue.popleft()
        try:
            if isinstance(value, _PLAIN):
                result.leaves[path] = Leaf(digest_of(value), type(value).__name__, part)
                continue
            if id(value) in seen or _is_left_out(value) or depth > _LIBRARY_DEPTH:
                continue
            seen[id(value)] = value
            part = names.get(id(value), part)
            if not part and not is_inside and (_is_stateful(value) or isinstance(value, torch.Generator)):
                result.stateful[path], is_inside = value, True
            content = _content(value)
            depth = depth + 1 if _is_of_library(value) else 0
        except Exception:  # noqa: BLE001 - the value's own methods raise whatever they like
            content = None
        if content is None:
            result.hidden[path] = type(value).__name__
            result.iterators.extend([path] if issubclass(type(value), Iterator) else [])
        elif isinstance(content, str):
            result.leaves[path] = Leaf(content, type(value).__name__, part)
        else:
            queue.extend((path + name, item, part, is_inside, depth) for name, item in content)


def _is_left_out(value: Any) -> bool:
    module = type(value).__module__
    is_of_package = module.partition(".")[0] == _PACKAGE
    if isinstance(value, type):
        return _is_of_library(value)
    if module in _COMMUNICATION:
        return True
    return isinstance(value, _WITHOUT_STATE) or (is_of_package and not isinstance(value, (DataLoader, Dataset)))


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and not isinstance(value, type) and not hasattr(value, "dataset")


def _is_of_library(value: Any) -> bool:
    if isinstance(value, (Mapping, Sequence, AbstractSet, nn.Module, types.FunctionType, types.MethodType)):
        return False
    kind = value if isinstance(value, type) else type(value)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not is_users_file(file)


Items = Sequence[tuple[str, Any]]


def _content(value: Any) -> str | Items | None:  # noqa: PLR0911 - one for each kind
    """Return a digest of an object, or the objects in it with the ends of their paths; None if it is hidden."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic, AbstractSet)):
        return digest_of(value)
    for kind, read in _GENERATORS.items():
        if isinstance(value, kind):
            return digest_of(read(value))
    if isinstance(value, nn.Module):
        # a tensor that two names share has both
        tensors: dict[str, Any] = dict(value.named_parameters(recurse=False, remove_duplicate=False))
        tensors |= dict(value.named_buffers(recurse=False, remove_duplicate=False))
        gradients = {f"{name}.grad": tensor.grad for name, tensor in tensors.items()}
        public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
        return _attributes({**tensors, **gradients, **dict(value.named_children()), **public})
    if isinstance(value, Optimizer):
        return [(f".{name}", item) for name, item in value.state_dict().items()]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        if all(isinstance(item, _PLAIN) for item in value):
            return digest_of([*value])
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    return _content_of_code(value) if callable(value) else _content_of_object(value)


def _content_of_code(value: Any) -> str | Items | None:
    if isinstance(value, type):
        return _attributes({
            name: item for name, item in vars(value).items()
            if isinstance(item, (*_PLAIN, list, dict, torch.Tensor, np.ndarray)) and not name.startswith("__")
        })  # fmt: skip
    if isinstance(value, types.FunctionType):
        if not is_users_file(value.__code__.co_filename):
            return []
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        inside = [(f".{name}", cell.cell_contents) for name, cell in cells]
        return [*inside, *_attributes(vars(value)), *((".default", item) for item in value.__defaults__ or ())]
    if isinstance(value, types.MethodType):
        return [(".__self__", value.__self__)]
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    return _content_of_object(value)


def _content_of_object(value: Any) -> str | Items | None:  # noqa: PLR0911 - one for each kind
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        if frame is None or not is_users_file(frame.f_code.co_filename):
            return None
        return _attributes(frame.f_locals) or digest_of(frame.f_lineno)
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, Iterator) and type(value).__module__ == "builtins":
        return [("", item) for item in value.__reduce__()[1:]]  # what it goes through, and its position
    if isinstance(value, Iterator) and _is_of_library(value):
        return None
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    attributes = {
        name: getattr(value, name) for name in slots if isinstance(name, str) and hasattr(value, name)
    }
    attributes |= getattr(value, "__dict__", {})
    if not attributes and not hasattr(value, "__dict__"):
        text = repr(value)
        return None if " at 0x" in text else digest_of(text)
    if not _is_of_library(value):
        return _attributes(attributes)
    state: Mapping[str, Any] = value.state_dict() if _is_stateful(value) else {}
    public = {name: item for name, item in attributes.items() if not name.startswith("_")}
    if attributes and not public and not state:
        return None
    return [*((f".{name}", item) for name, item in state.items() if name not in public), *_attributes(public)]


def _attributes(values: Mapping[str, Any]) -> Items:
    return [(f".{name}", item) for name, item in values.items()]


_GENERATORS: Mapping[type, Callable[[Any], object]] = {
    torch.Generator: lambda generator: generator.get_state(),
    np.random.Generator: lambda generator: generator.bit_generator.state,
    np.random.RandomState: lambda generator: generator.get_state(legacy=False),
    random.Random: lambda generator: generator.getstate(),
}
