"""The calls of a program to wandb or trackio, written to a file as lines of JSON.

The program imports this file with its own Python, in which runmanager may not be installed.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

SETTINGS: Mapping[str, Any] = json.loads(os.environ["RUNMANAGER_CAUGHT"])
"""The library to stand for, the file of its calls, whether to send them too, and the id of the run."""


def stand_for(name: str, load: Callable[[], Any]) -> None:
    """Let the module of a library take its calls, or let the library, which `load` imports, send them too."""
    if name == SETTINGS["name"] and not SETTINGS["sends"]:
        run = _Run()
        vars(sys.modules[name]).update(
            init=run.init, log=run.log, run=run, config=run.config, summary=run.summary, __getattr__=_ignored,
            __version__="0",
        )  # fmt: skip
        return
    path = [*sys.path]
    sys.path.remove(os.path.dirname(__file__))  # noqa: PTH120 - light
    del sys.modules[name]
    try:
        library = load()
    finally:
        sys.path[:] = path
    if name == SETTINGS["name"]:
        _write_calls(library.Run)


def _write_calls(run_type: Any) -> None:
    """Let the runs of a library write what they send."""
    send = run_type.log

    def log(run: Any, data: Mapping[str, Any], step: Any = None, **options: Any) -> None:
        _write(data, step)
        send(run, data, step=step, **options)

    run_type.log = log


def _write(values: Mapping[str, Any], step: Any = None) -> None:
    numbers = {
        name: value for name, value in values.items() if not isinstance(value, str | bytes | list | tuple)
    }
    line = json.dumps({"step": step, **numbers, "_timestamp": time.time()}, default=_number, skipkeys=True)
    with open(SETTINGS["file"], "ab", buffering=0) as file:  # noqa: PTH123 - light
        file.write(line.encode() + b"\n")


def _number(value: Any) -> float | None:
    """Return the number of a tensor or an array, None for an image or a table."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


class _Ignored:
    """A part without meaning here: it can be called and entered, and has every attribute."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Self:
        return self

    def __getattr__(self, name: str) -> "_Ignored":
        return _ignored(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def _ignored(name: str) -> _Ignored:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Ignored()


class _Config(dict[str, Any]):
    """A configuration, whose items are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    __setattr__ = dict.__setitem__

    def update(self, values: Any = (), allow_val_change: bool = True) -> None:  # type: ignore[override]
        """Add the items of a mapping or a namespace."""
        super().update(values if isinstance(values, Mapping) else getattr(values, "__dict__", ()))

    def setdefaults(self, values: Mapping[str, Any]) -> None:
        """Add the items that are missing."""
        self.update({**values, **self})


class _Summary(_Config):
    """The results of the run, which become columns with `summary_` in front."""

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    __setattr__ = __setitem__

    def update(self, values: Any = (), allow_val_change: bool = True) -> None:  # type: ignore[override]
        """Add results."""
        super().update(values)
        _write({"summary": dict(values)})


class _Run(_Ignored):
    """The run of the program."""

    def __init__(self) -> None:
        self.config, self.summary = _Config(), _Summary()
        self.id = self.name = SETTINGS["id"]
        self.dir = os.path.dirname(SETTINGS["file"])  # noqa: PTH120 - light

    def init(self, *_: Any, config: Any = None, **__: Any) -> "_Run":
        """Begin the run, with a configuration."""
        self.config.update(config)
        return self

    def log(self, data: Mapping[str, Any], step: Any = None, **_: Any) -> None:
        """Write the numbers of a call."""
        _write(data, step)
