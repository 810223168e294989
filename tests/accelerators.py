# ruff: noqa: C901, PLR0912, E501 - the rules of torch in one table each
"""Pretended accelerators: tensors that say ``cuda:1`` and are computed on the cpu, and devices that can fail.

The devices of a machine are files in a folder, so that all its processes see the same: what a test sets there (a
device is full, dead, hangs, is well again) holds for lanes too. Tensors keep torch's arithmetic, autograd and
errors. What would wait for a real device is counted, by torch's rules for CUDA.
"""

import contextlib
import os
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

PRETENDED = "RUNMANAGER_PRETENDED_DEVICES"
WELL, FULL, HANGS = "well", "full", "hangs"
DEAD = "CUDA error: unspecified launch failure\nand more"
NO_HANDLE = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"  # in the last 100 MiB
ASSERT = (
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other "
    "API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
    "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
NO_DOUBLE = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)
_NOT_ON_MPS = (torch.float64, torch.complex128)
_GIB = 2**30
_ATEN = torch.ops.aten
_READS = {_ATEN._local_scalar_dense.default, _ATEN.equal.default, _ATEN.is_nonzero.default}
# their results' sizes, or checks, are read back: aten/src/ATen/native/cuda
_WAITS = {
    _ATEN.nonzero.default: 1, _ATEN.masked_select.default: 1, _ATEN._unique2.default: 1, _ATEN.bincount.default: 2,
    _ATEN.repeat_interleave.Tensor: 1,
}  # fmt: skip

_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
_TIMES = {_ATEN.div_.Tensor: _ATEN.mul_.Tensor, _ATEN.div.Tensor: _ATEN.mul.Tensor}


@dataclass(frozen=True)
class Machine:
    """The pretended devices of a machine, as ``cuda:0``, ``cuda:1``; each has `memory` bytes."""

    folder: Path
    count: int = 2
    kind: str = "cuda"
    memory: int = 8 * _GIB

    def set(self, index: int, state: str) -> None:
        """Let a device be well, full or hanging, or fail with an error, in all processes."""
        (self.folder / f"{index}.state").write_text(state)

    def state(self, index: int) -> str:
        try:
            return (self.folder / f"{index}.state").read_text() or WELL
        except FileNotFoundError:
            return WELL

    def starts(self, index: int) -> int:
        return len(list(self.folder.glob(f"{index}.start.*")))

    def on(self, work: Any) -> "OnMachine":
        """Let work have these devices wherever it is executed."""
        return OnMachine(work, self)


class OnMachine:
    """Work that has pretended devices: they are there as soon as a process loads it."""

    def __init__(self, work: Any, machine: Machine) -> None:
        self.work, self.machine = work, machine

    def __call__(self, *arguments: Any) -> Any:
        return self.work(*arguments)

    def __reduce__(self) -> Any:
        return _loaded, (self.work, self.machine)


def _loaded(work: Any, machine: Machine) -> OnMachine:
    global _here  # noqa: PLW0603 - the devices belong to the process
    if _here is None:
        _here = _Here(machine, pytest.MonkeyPatch())
    return OnMachine(work, machine)


def pretend() -> None:
    """Give this process the devices in the folder that the environment names: for a `sitecustomize`."""
    if PRETENDED in os.environ:
        _loaded(None, Machine(Path(os.environ[PRETENDED]), count=1))


@contextlib.contextmanager
def installed(machine: Machine) -> Iterator["_Here"]:
    """Let this process have pretended devices for the length of a block."""
    global _here  # noqa: PLW0603
    if _here is None and torch.cuda.device_count():
        pytest.skip("pretended devices need a machine without a GPU")
    with pytest.MonkeyPatch.context() as patch:
        before, _here = _here, _Here(machine, patch)
        try:
            yield _here
        finally:
            _here.names.__exit__(None, None, None)
            _here.mode.__exit__(None, None, None)
            _here = before


@dataclass
class Waits:
    """What waited for the device, by name; `staged` copies from pageable memory do so on some systems."""

    calls: list[str] = field(default_factory=list)
    staged: int = 0
    is_said: bool = False  # whether each warns, as torch.cuda.set_sync_debug_mode makes it do


class _Here:
    """The devices as one process has them."""

    def __init__(self, machine: Machine, patch: pytest.MonkeyPatch) -> None:
        self.machine, self.current, self.poison, self.memory = machine, 0, "", machine.memory
        self.waits = Waits()
        self.allocated = dict.fromkeys(range(machine.count), 0)
        self.peak = dict.fromkeys(range(machine.count), 0)
        self.started: set[int] = set()
        self.kernels: set[str] = set()  # that were used: a real device loads each at its first use
        self.freed: list[int] = []  # the devices at each `empty_cache`
        self.random = {i: torch.zeros(16, dtype=torch.uint8) for i in range(machine.count)}
        self.mode = _Mode()
        self._patch(patch)
        self.names = _Names()
        self.mode.__enter__()
        self.names.__enter__()

    def use(self, device: torch.device | int | None = None) -> int:
        """Ask something of a device: it may be dead, or hang."""
        index = self.index(device)
        state = self.machine.state(index)
        if index not in self.started:
            self.started.add(index)
            (self.machine.folder / f"{index}.start.{os.getpid()}").touch()
        while state == HANGS:
            time.sleep(0.02)
            state = self.machine.state(index)
        if self.poison:
            raise torch.AcceleratorError(self.poison)
        if state not in (WELL, FULL):
            raise torch.AcceleratorError(state)
        return index

    def index(self, device: torch.device | str | int | None) -> int:
        """Return the number of a device; the current one if it has none."""
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return self.current if index is None else index

    def allocate(self, device: torch.device, tensor: torch.Tensor) -> None:
        """Take memory for a tensor for as long as it lives."""
        index, size = self.use(device), tensor.untyped_storage().nbytes()
        if size and (self.machine.state(index) == FULL or self._taken(index) + size > self.memory):
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / _GIB:.2f} GiB. GPU {index} has a total capacity "
                f"of {self.machine.memory / _GIB:.2f} GiB of which 0.10 GiB is free."
            )
        self._add(index, size)
        weakref.finalize(tensor.untyped_storage(), self._add, index, -size)

    def _add(self, index: int, size: int) -> None:
        self.allocated[index] += size
        self.peak[index] = max(self.peak[index], self.allocated[index])
        if abs(size) >= 2**24:  # the rest does not matter to other processes
            with contextlib.suppress(FileNotFoundError):  # it may outlive its test, whose folder is gone
                (self.machine.folder / f"{index}.bytes.{os.getpid()}").write_text(str(self.allocated[index]))

    def _taken(self, index: int) -> int:
        taken = self.allocated[index]
        for path in self.machine.folder.glob(f"{index}.bytes.*"):
            pid = int(path.suffix[1:])
            if pid != os.getpid() and Path(f"/proc/{pid}").exists():
                taken += int(path.read_text() or 0)
        return taken

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        """Replace what torch asks of a driver."""
        machine, kind = self.machine, self.machine.kind
        module = getattr(torch, kind)

        def set_device(device: Any) -> None:
            self.current = self.index(device)

        @contextlib.contextmanager
        def scope(index: int | None) -> Iterator[None]:
            before = self.current
            self.current = before if index is None else index
            try:
                yield
            finally:
                self.current = before

        def reset_peak(device: Any = None) -> None:
            self.peak[self.index(device)] = self.allocated[self.index(device)]

        def memory(device: Any = None) -> tuple[int, int]:
            index = self.use(device)
            free = 0 if machine.state(index) == FULL else machine.memory - self._taken(index)
            return free, machine.memory

        def set_random(state: torch.Tensor, device: Any = None) -> None:
            self.random[self.index(device)] = state.clone()

        def set_sync_debug_mode(mode: str) -> None:
            self.waits.is_said = mode == "warn"

        def of(device: tuple[Any, ...]) -> tuple[Any, ...]:
            if (not device) is not (kind == "mps"):  # torch.mps takes none
                raise TypeError(f"torch.{kind}.get_rng_state() takes {'no' if kind == 'mps' else 'a'} device")
            return device or (None,)

        def set_fraction(fraction: float, _: Any = None) -> None:
            self.memory = int(fraction * machine.memory)

        both = {"is_available": lambda: machine.count > 0, "device_count": lambda: machine.count,
                "synchronize": self.use, "empty_cache": lambda: self.freed.append(self.use())}  # fmt: skip
        of_accelerator = {
            **both, "current_accelerator": lambda **_: torch.device(kind),
            "set_device_index": set_device, "current_device_index": lambda: self.current,
            "current_stream": lambda _=None: SimpleNamespace(is_capturing=lambda: False),
            "get_memory_info": memory, "device_index": scope, "max_memory_allocated": lambda device=None: self.peak[self.index(device)],
            "reset_peak_memory_stats": reset_peak,
        }  # fmt: skip
        of_module: dict[str, Any] = {
            **both, "_lazy_init": lambda: None, "set_device": set_device, "current_device": lambda: self.current,
            "mem_get_info": memory, "get_device_name": lambda _=None: "a pretended device",
            "get_rng_state": lambda *device: self.random[self.index(*of(device))].clone(),
            "set_rng_state": lambda state, *device: set_random(state, *of(device)), "is_current_stream_capturing": lambda: False,
            "is_initialized": lambda: bool(self.started), "is_bf16_supported": lambda **_: True,
        }  # fmt: skip
        if kind == "mps":
            patch.setattr(torch.backends.mps, "get_name", lambda: "a pretended device")
        if kind == "cuda":
            of_module |= {"set_sync_debug_mode": set_sync_debug_mode, "set_per_process_memory_fraction": set_fraction, "Event": _Event,
                          "get_device_properties": lambda _=None: SimpleNamespace(name="a pretended device", total_memory=machine.memory, uuid="0" * 8)}  # fmt: skip
        if kind != "mps":  # torch.mps has no such counters
            of_module |= {"max_memory_allocated": of_accelerator["max_memory_allocated"],
                          "memory_allocated": lambda device=None: self.allocated[self.index(device)],
                          "reset_peak_memory_stats": reset_peak}  # fmt: skip
        patch.setattr(torch.Tensor, "pin_memory", _pinned)
        for name, value in of_accelerator.items():
            patch.setattr(torch.accelerator, name, value)
        for name, value in of_module.items():
            patch.setattr(module, name, value, raising=False)


class _Event:
    """A moment, as the device's clock tells it."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.is_timed, self.seconds = enable_timing, 0.0

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, other: Self) -> float:
        return 1e3 * (other.seconds - self.seconds)


_here: _Here | None = None


def fail_kernels() -> None:
    """Let a kernel of this process fail: whatever it asks of its device from now on raises."""
    assert _here is not None
    _here.poison = ASSERT


class _Mode(TorchDispatchMode):
    """Catches what makes tensors on a pretended device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Names(TorchFunctionMode):
    """Gives a device without a number that of the current one, for which torch would ask the driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_move = func in (torch.Tensor.to, torch.Tensor.cuda)
        named = {
            name: self._numbered(value) if name == "device" else value for name, value in (kwargs or {}).items()
        }
        if func is torch.tensor and named.get("device") is not None:  # it would begin CUDA
            return func(*args, **{**named, "device": None}).to(named["device"])
        result = func(*(self._numbered(arg) if is_move else arg for arg in args), **named)
        if func in _PRODUCTS and isinstance(result, _Tensor) and result.shape == (2, 2):
            # autocast leaves pretended tensors alone, but for the product by which its types are tried
            kind = result.device.type
            result = result.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else result
        return result

    def _numbered(self, value: Any) -> Any:
        if _here is None or not isinstance(value, (str, torch.device)) or str(value) != _here.machine.kind:
            return value
        return torch.device(_here.machine.kind, _here.current)


class _Tensor(torch.Tensor):
    """A tensor on a pretended device; torch's own code takes it for one on ``meta``."""

    data_: torch.Tensor
    device_: torch.device

    @staticmethod
    def __new__(cls, data: torch.Tensor, device: torch.device) -> Self:
        made = torch.Tensor._make_wrapper_subclass(
            cls, data.size(), strides=data.stride(), storage_offset=data.storage_offset(), dtype=data.dtype,
            layout=data.layout, device=torch.device("meta"),
        )  # fmt: skip
        made.data_, made.device_ = data, device
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _compute(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.device_

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.data_.detach().__reduce_ex__(protocol)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.data_!r} on {self.device_}"


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    here = _here
    on: list[torch.device] = []

    def unwrap(value: Any) -> Any:
        if isinstance(value, _Tensor):
            on.append(value.device_)
            return value.data_
        return value

    plain, options = tree_map(unwrap, args), tree_map(unwrap, dict(kwargs))
    asked = options.get("device")
    target = on[0] if on else None
    # torch's own code names the device of such a tensor so
    if on and asked is not None and torch.device(asked).type == "meta":
        asked, options["device"] = None, torch.device("cpu")
    if asked is not None and here is not None:
        target = torch.device(asked) if torch.device(asked).type == here.machine.kind else None
        if target is not None:
            target = torch.device(target.type, here.index(target))
            options["device"] = torch.device("cpu")
    if here is None or (target is None and not on):
        return _on_cpu(func, plain, options)
    for device in {*on, *([target] if target else [])}:
        here.use(device)
    if len({*on, *([target] if target else [])}) > 1 and asked is None and func is not _ATEN.copy_.default:
        first, second = dict.fromkeys(map(str, on))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
        )
    if asked is None:
        _refuse_mixture(func, args, target)
    here.kernels.add(str(func))
    num_waits = len(here.waits.calls)
    _count(here.waits, func, args, kwargs, on, target)
    if here.waits.is_said and len(here.waits.calls) > num_waits:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
    with _disable_current_modes():
        if func in (_ATEN.div_.Tensor, _ATEN.div.Tensor) and _is_number(args[1]):  # BinaryDivTrueKernel.cu
            func, plain = _TIMES[func], (plain[0], torch.tensor(1 / float(args[1]), dtype=plain[0].dtype))
        result = func(*plain, **options)
    if target is None or func in _READS:
        return result
    written = [
        a for a, s in zip(args, func._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write
    ]
    if written:
        written += [
            kwargs[s.name] for s in func._schema.arguments if s.kwarg_only and s.name in kwargs and s.is_out
        ]
        return written[0] if isinstance(result, torch.Tensor) else result
    if target.type == "mps" and any(made.dtype in _NOT_ON_MPS for made in _tensors(result)):
        raise TypeError(NO_DOUBLE)
    if not [s for s in func._schema.arguments if s.alias_info]:
        for made in _tensors(result):
            here.allocate(target, made)
    return tree_map(lambda value: _Tensor(value, target) if isinstance(value, torch.Tensor) else value, result)


def _on_cpu(func: Any, args: Any, options: Any) -> Any:
    if func is _ATEN.is_pinned.default:
        return hasattr(args[0], "is_pinned_")
    return func(*args, **options)


def _pinned(tensor: torch.Tensor, _: Any = None) -> torch.Tensor:
    """Pin memory, also in the thread of a loader, where no mode is on."""
    pinned = tensor.clone()
    pinned.is_pinned_ = True  # type: ignore[attr-defined]
    return pinned


def _is_number(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or (not isinstance(value, _Tensor) and value.ndim == 0)


def _tensors(result: Any) -> list[torch.Tensor]:
    several = result if isinstance(result, (tuple, list)) else [result]
    return [value for value in several if isinstance(value, torch.Tensor)]


def _refuse_mixture(func: Any, args: Any, target: torch.device | None) -> None:
    """Refuse tensors of the cpu beside those of a device, as torch does, but for numbers and indices."""
    if func in (_ATEN.copy_.default, _ATEN.index.Tensor, _ATEN.index_put_.default, _ATEN.index_put.default):
        return
    others = [value for value in args if isinstance(value, torch.Tensor) and not isinstance(value, _Tensor)]
    if any(other.ndim for other in others):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {target} and cpu!"
        )


def _count(waits: Waits, func: Any, args: Any, kwargs: Any, on: list[torch.device], target: Any) -> None:
    """Count what would wait for a CUDA device: reading it, copies that block, sizes that depend on values."""
    name = str(func).removeprefix("aten.")
    if func in _READS:
        waits.calls.append(name)
    waits.calls += [name] * _WAITS.get(func, 0)
    if func in (_ATEN._to_copy.default, _ATEN.copy_.default):
        source = args[0] if func is _ATEN._to_copy.default else args[1]
        is_from, is_to = isinstance(source, _Tensor), target is not None
        is_async = kwargs.get("non_blocking") or (func is _ATEN.copy_.default and args[2:] == (True,))
        if func is _ATEN.copy_.default:
            is_to = isinstance(args[0], _Tensor)
        if is_from != is_to and (is_from or not is_async):
            waits.calls.append(name)
        elif is_from != is_to and not hasattr(source, "is_pinned_"):
            waits.staged += 1
    if func in (_ATEN.index.Tensor, _ATEN.index_put_.default) and isinstance(args[0], _Tensor):
        indices = [index for index in args[1] if index is not None]
        waits.calls += [
            name for index in indices if index.dtype == torch.bool or not isinstance(index, _Tensor)
        ]
