"""A user's program as a training function: executed once per run, with the hyperparameters as flags."""

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.checks.changed import body_of, short_hash, unparsed
from runmanager.core import files
from runmanager.errors import InvalidArgumentError, Problems, of_grid
from runmanager.executors.deaths import Deaths

if TYPE_CHECKING:
    import torch

    from runmanager.core.grid_context import GridContext
    from runmanager.core.task import Fingerprint
    from runmanager.front.manager import RunManager
    from runmanager.front.reported import LinesFile, Rows

STYLES = ("flags", "hydra")
CAUGHT = ("wandb", "trackio", "wandb+send")

_NOT_COMPARED = ("check", "resume")
_TICK_S, _LONG_TICK_S = 0.05, 0.25  # between two looks at files, of which there may be many
_GRACE_S = 3.0  # from SIGTERM to SIGKILL
_LAST = 1 << 14  # bytes of the output in which the cause of an error is sought
# The shell leaves a process behind that kills the program's group when the pipe to it closes, at the latest
# when this process dies; then it becomes the program.
_SHELL = (
    'exec 3<&0; ( (trap "" TERM; read _ <&3; kill -KILL 0) > /dev/null 2>&1 & ); exec "$@" 3<&- < /dev/null'
)


class CommandError(RuntimeError):
    """A program of a `Command` has ended with an error; the text has its last lines."""


def words_of(command: "Command") -> list[str]:
    """Return the words of a command."""
    return _split(command.command)


def name_of(command: "Command") -> str:
    """Return the name of a command's script or module, else of its program."""
    words = words_of(command)
    return re.sub(r"[^\w-]", "_", Path(_script(words)).stem or _module(words) or Path(words[0]).stem)


def with_program(fingerprint: "Fingerprint", command: "Command") -> "Fingerprint":
    """Return the fingerprint of a grid with the program's script and modules."""
    words = words_of(command)
    texts = _python_files(words)
    named = {} if texts else {words[0]: "a program, of which the command alone is compared"}
    return {
        **fingerprint,
        "code": {name: short_hash(source) for name, source in texts.items()},
        "values": {name: repr(value) for name, value in vars(command).items() if name not in _NOT_COMPARED},
        "source": {
            "text": "\n\n".join(f"# %% {name}, which gets a run\n{source}" for name, source in texts.items())
        },
        "named": {**fingerprint["named"], **named},
    }


@dataclass(frozen=True)
class Command:
    r"""A program as the training function of `run_grid`, without a changed line: executed once per run.

    Each hyperparameter becomes a flag, as ``--lr 0.1``: True becomes ``--amp`` alone, False and None nothing,
    "yes" and "no" become ``--amp`` and ``--no-amp``, a tuple several words. Instead, ``{lr}`` may stand in the
    command; so may ``{folder}``, a folder of the run, and ``{run}``, its name. The hyperparameter `device` is
    no flag: by CUDA_VISIBLE_DEVICES, the program sees this device alone.

    Metrics are read from one source: the calls of `catch`, the event files in `events`, or `metrics_file`;
    without these, the lines of JSON that the program prints, as ``{"epoch": 3, "val_acc": 0.91}``. A row of the
    table ends where the epoch differs, else where the step differs, else where a metric comes again, but with a
    goal not before its metric has come. Values that come more often are steps, for `load_steps`. The column
    `position` has the program's own epoch, else its step. The epoch duration is the time between the last
    metrics of two rows, within a quarter of a second; no device is synchronized.

    Args:
        command: The words of the command, or a text that is split as by a shell. No shell executes it: write
            ``["sh", "-c", "a | b"]`` for one.
        style: "flags", or "hydra" for ``lr=0.1``.
        catch: "wandb" or "trackio": a module of this name takes the program's calls, of which `log` and
            `summary` are read, and nothing is sent. With "wandb+send", the library itself is called too, `log`
            alone is read, and each run of W&B has an id of its own, under which it resumes.
        events: The folder of the program's event files, as ``{folder}``; ``*`` stands for any name.
        metrics_file: A .csv file with a header, or a file of JSON lines, in ``{folder}``.
        resume: Words that are added when an earlier attempt was interrupted and each path with ``{folder}`` in
            them exists, as ``--resume {folder}/last.pth``. It needs a goal, and the program has to report its
            epoch or its step with the goal's metric: the rows before the first one are kept. Else each attempt
            starts over, with an empty ``{folder}``.
        check: Words that shorten the one run of ``run_grid(check=True)``, as ``--epochs 1``.
        flags: Hyperparameter -> its flag, if it differs from the name.

    The program's script or module is compared as the code of a training function, and so are the modules that
    it imports from beside it, from the working folder or its ``src``. Of other programs, the command alone is
    compared.

    Raises:
        InvalidArgumentError: The program or its script does not exist, or an argument is invalid.

    Example:
        >>> from pathlib import Path
        >>> from runmanager import run_grid
        >>> _ = Path("train.py").write_text("import sys; print('{\"val_acc\": ' + sys.argv[2] + '}')")
        >>> options = {"experiment": "command", "goal": "max:val_acc", "display": False}
        >>> outcome = run_grid({"lr": [0.1, 0.2]}, Command("python train.py"), **options)
        >>> outcome.runs["val_acc"].tolist()
        [0.1, 0.2]
    """

    command: str | Sequence[str]
    style: str = "flags"
    catch: str | None = None
    events: str | None = None
    metrics_file: str | None = None
    resume: str | None = None
    check: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems, words = Problems(), words_of(self)
        problems.check_choice("style", self.style, STYLES)
        problems.check_choice("catch", self.catch, (None, *CAUGHT))
        if os.name != "posix":
            problems.append("a command needs Linux, macOS or WSL")
        if sum(map(bool, (self.catch, self.events, self.metrics_file))) > 1:
            problems.append("catch, events and metrics_file are sources of metrics: give one")
        if self.metrics_file and "{folder}" not in self.metrics_file:
            problems.append(f"no {{folder}} in metrics_file={self.metrics_file!r}: each run needs its own file")
        if not words or shutil.which(words[0]) is None:
            problems.append(f"no program {' '.join(words)!r}: write the command as in a terminal")
        if not Path(_script(words[:2])).exists():  # a later one may be an argument
            problems.append(f"no file {words[1]!r} in {Path.cwd()}")
        problems.raise_if_any(InvalidArgumentError)

    def __call__(self, run: Any, manager: "RunManager") -> None:
        """Execute the program for a run, and track its metrics."""
        from runmanager.front.reported import EventFiles, LinesFile, MetricsFile, Rows  # imports torch

        with manager.run(run):
            opened = manager._open_run("a command")
            path, rows, deaths = opened.folder.path, Rows(manager, opened), Deaths()
            folder, printed, calls = path / "files", path / "printed.log", path / "calls.jsonl"
            fill = partial(_filled, {"folder": folder, "run": path.name, **run._asdict()})
            self._check(opened.context)
            lines, other = LinesFile(printed), self.catch or self.events or self.metrics_file
            (file,) = map(Path, fill([self.events or self.metrics_file or str(calls)]))
            kind: Any = EventFiles if self.events else MetricsFile if self.metrics_file else LinesFile
            source = kind(file) if other else lines
            again = fill(self.resume or "")
            paths = [word[word.index(str(folder)) :].rstrip("'\"") for word in again if str(folder) in word]
            if not (again and all(map(os.path.exists, paths)) and rows.resume(source.read())):
                again = []
                _remove(folder, printed, calls)
            files.make_folder(folder)
            source.begin()
            lines.begin(partial(_show, opened.report_step))
            words = [*fill(self.command), *self._flags(run), *again]
            if opened.context.epoch_type.most_steps is not None:
                words += fill(self.check or "")
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HYDRA_FULL_ERROR": "1"}
            environment |= _visible(opened.device) if "device" in run._fields else {}
            environment |= _catching(self.catch, calls, opened.folder.id) if self.catch else {}
            code, tick = None, _LONG_TICK_S if self.events or self.metrics_file else _TICK_S
            with _executing(words, environment, printed) as process:
                while code is None and not manager.should_stop:
                    with suppress(subprocess.TimeoutExpired):
                        code = process.wait(tick)
                    _read(source, lines, rows)
            if manager.should_stop or code is None:
                return
            _read(source, lines, rows, is_over=True)  # what its group has reported until it ended, too
            rows.end()
            if code < 0:
                opened.set(*deaths.explain(code, "", _last(printed)))
            elif code:
                raise _error(code, _last(printed))
            elif lacking := rows.lacking():
                looked = other or 'lines as {"val_acc": 0.9} in its output'
                step = "name another source by --catch, --events or --metrics-file, or another goal"
                raise of_grid(f"{name_of(self)} reported {lacking}; looked for {looked}: {step}")
            else:
                _remove(printed, calls)

    def _check(self, context: "GridContext") -> None:
        """Refuse what would mix the metrics of runs, or of attempts."""
        if self.resume and context.goal is None:
            raise of_grid("resume needs a goal: its metric says where the program goes on")
        if self.events and "{folder}" not in self.events and (self.resume or context.jobs > 1):
            raise of_grid(f"{self.events!r} has all runs: write {{folder}} in it, or one job and no resume")

    def _flags(self, run: Any) -> list[str]:
        """Return the words for the hyperparameters that do not stand in the command as `{lr}`."""
        text = " ".join(words_of(self))
        words: list[str] = []
        for name, value in run._asdict().items():
            if f"{{{name}}}" in text or name == "device" or value is None:
                continue
            flag = self.flags.get(name, f"--{name}")
            if self.style == "hydra":
                words.append(f"{flag.lstrip('-')}={value}")
            elif isinstance(value, bool):
                words += [flag] * value
            elif value in ("yes", "no"):
                words.append(flag if value == "yes" else f"--no-{flag.lstrip('-')}")
            else:
                words += [flag, *map(str, value if isinstance(value, tuple | list) else [value])]
        return words


@contextmanager
def _executing(
    words: Sequence[str], environment: Mapping[str, str], output: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Execute a program in a process group of its own, which ends with the block, or with this process."""
    with output.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603 - the user's program
            ["/bin/sh", "-c", _SHELL, "sh", *words], stdin=subprocess.PIPE, stdout=file, stderr=file,
            env=environment, start_new_session=True,
        )  # fmt: skip
    assert process.stdin
    try:
        yield process
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_GRACE_S)
        process.stdin.close()  # on which the group is killed
        process.wait()


def _read(source: Any, lines: "LinesFile", rows: "Rows", *, is_over: bool = False) -> None:
    """Read what a program has reported and printed."""
    for each in source.read(is_over=is_over):
        rows.add(each)
    if source is not lines:
        for _ in lines.read():
            pass


def _last(output: Path) -> str:
    """Return the last part of a program's output, from its last traceback on."""
    text = files.read_file(output, _LAST).decode("utf-8", "replace")
    return text.rpartition("Traceback (most recent call last):\n")[2].strip()


def _error(code: int, last: str) -> Exception:
    """Return the error of a program with this exit code, and with these last lines of its output."""
    cause = last.rpartition("\n")[2]
    kind = MemoryError if cause.startswith("MemoryError") else CommandError
    return kind(f"exit code {code}: {cause}\n{last}")


def _show(live: Callable[[], None], content: bytes) -> None:
    """Show what a program has printed, as if this process had; `live` is told."""
    live()
    while content:
        content = content[os.write(1, content) :]


def _remove(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)


def _split(words: str | Sequence[str]) -> list[str]:
    return shlex.split(words) if isinstance(words, str) else [*words]


def _filled(values: Mapping[str, Any], words: str | Sequence[str]) -> list[str]:
    """Fill values in words, as in `{lr}`; other braces stay."""
    filled = _split(words)
    for name, value in values.items():
        filled = [word.replace(f"{{{name}}}", str(value)) for word in filled]
    return filled


def _visible(device: "torch.device") -> dict[str, str]:
    """Return the variable by which a program sees a device of this process alone."""
    visible, index = os.environ.get("CUDA_VISIBLE_DEVICES"), device.index or 0
    ids = visible.split(",")[index] if visible else str(index)
    return {"CUDA_VISIBLE_DEVICES": ids if device.type == "cuda" else ""}


def _catching(catch: str, calls: Path, id_: str) -> dict[str, str]:
    """Return the variables by which a program imports our modules in place of `wandb` or `trackio`."""
    name, _, sends = catch.partition("+")
    caught = {"name": name, "sends": sends, "file": str(calls), "id": id_[:16]}
    path = f"{Path(__file__).parent / 'caught'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {
        "PYTHONPATH": path.rstrip(os.pathsep), "RUNMANAGER_CAUGHT": json.dumps(caught),
        "WANDB_RUN_ID": caught["id"], "WANDB_RESUME": "allow",
    }  # fmt: skip


def _script(words: Sequence[str]) -> str:
    """Return the Python file that a command executes, "" without one: that of its module, else a named one."""
    stem = _module(words).replace(".", "/")
    own = filter(os.path.isfile, (f"{stem}.py", f"{stem}/__main__.py"))
    return next((word for word in (*own, *words) if word.endswith(".py")), "")


def _module(words: Sequence[str]) -> str:
    """Return the module that a command executes by `-m`, "" without one."""
    return dict(pairwise(words)).get("-m", "")


def _python_files(words: Sequence[str]) -> dict[str, str]:
    """Return the statements of a command's script, and of your modules that it imports, by file."""
    script = Path(_script(words)).absolute()
    folders = [script.parent, Path.cwd(), Path.cwd() / "src"]
    paths = [script] if script.is_file() else []
    texts: dict[str, str] = {}
    for path in paths:  # which grows
        text = path.read_text("utf-8", "replace")
        body = body_of(text)
        # the text itself, if this Python cannot parse it
        texts[os.path.relpath(path, folders[0])] = "\n".join(map(unparsed, body)) or text
        for node in ast.walk(ast.Module(body, [])):
            if isinstance(node, ast.Import | ast.ImportFrom):
                level, package = getattr(node, "level", 0), getattr(node, "module", None) or ""
                within = [path.parents[level - 1]] if level else folders
                for alias in node.names:
                    name = f"{package}.{alias.name}".strip(".")
                    paths += [each for each in _modules(within, name) if each not in paths]
    return texts


def _modules(folders: Iterable[Path], name: str) -> Iterator[Path]:
    """Yield the files of a module, and of the packages around it, below any of the folders."""
    for folder in folders:
        stem = folder
        for part in name.split("."):
            stem /= part
            yield from filter(Path.is_file, (stem / "__init__.py", stem.with_name(f"{part}.py")))
