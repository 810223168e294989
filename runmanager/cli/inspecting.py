"""The command that shows one run: show."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.cli.common import tell_damage, write_out
from runmanager.cli.listing import sizes_in
from runmanager.cli.rows import tell
from runmanager.core import files
from runmanager.core.experiment import Experiment
from runmanager.tables.cells import cell, join
from runmanager.tables.notes import first_line_of_note

if TYPE_CHECKING:
    from runmanager.core.experiment import Design
    from runmanager.core.state import RunResult

_LAST_LINES = 12  # number of lines of a traceback


def show_command(run: Path, *, code: bool = False, printed: bool = False) -> None:
    """Show one run: settings, outcome, epochs and files.

    A failed run shows the end of its traceback.

    For example:

      runmanager show runs/fashion_grid/2
      runmanager show runs/fashion_grid/002-lr=0.01-device=cpu
      runmanager show runs/fashion_grid/2 --output | grep loss

    Exit codes: 0 shown; 1 one of its files is damaged; 2 no such run.

    Options:
        code: Show only the source that the run reached when it began.
        printed: Show only what the run printed.
    """
    from runmanager.checks.kept_source import read_source
    from runmanager.core.state import read_output, read_run
    from runmanager.core.wording import last_state
    from runmanager.tables.one_run import find_run

    damaged: list[str] = []
    result = read_run(find_run(run)[1], damaged)
    if code:
        write_out(read_source(result).rstrip("\n"))
    elif printed:
        write_out("\n".join(map(last_state, read_output(result.folder.path).split("\n"))).rstrip("\n"))
    else:
        _print_run(result, Experiment(result.folder.path.parent).design)
    tell_damage(damaged)


def _print_run(run: "RunResult", design: "Design") -> None:
    from rich.filesize import decimal

    _print_pairs("", _facts(run, design))
    _print_pairs("Hyperparameters", {
        name: repr(value) if isinstance(value, float) else cell(value)
        for name, value in run.folder.params.items()
    })  # fmt: skip
    if run.epochs:
        _print_epochs(run, design)
    _print_pairs("Results of the run", run.summary)
    _print_pairs("How it was executed", _how(run))
    _print_pairs("Files", {name: decimal(size) for name, size in sizes_in(run.folder.path).items()})
    if lines := run.error_log_tail(_LAST_LINES):
        _heading(f"The last lines of {files.ERROR_LOG}")
        write_out("\n".join(lines))


def _print_pairs(heading: str, pairs: Mapping[str, Any]) -> None:
    """Print names and values, without those that are empty, below a heading; a long word stays whole."""
    from rich.text import Text

    from runmanager.drawing.console import wide_console
    from runmanager.drawing.table import sign_color, wrapped

    texts = {cell(name): cell(value) for name, value in pairs.items() if value is not None and cell(value)}
    if heading and texts:
        _heading(heading)
    console = wide_console()
    width = max(map(len, texts), default=0) + 2
    for name, value in texts.items():
        text = Text("\n".join(wrapped(value, console.width, name.ljust(width), " " * width)))
        text.stylize(sign_color(value[:1]), width)
        console.print(text, soft_wrap=True)


def _print_epochs(run: "RunResult", design: "Design") -> None:
    """Print the last epochs, and a line with the best epoch."""
    from runmanager.answers.show import of_table
    from runmanager.core.goal import default_goal, goal_of_kept
    from runmanager.drawing.console import print_fitted
    from runmanager.tables.columns import results_table
    from runmanager.tables.run_numbers import tracked

    names = tracked([run])
    goal = design.goal or goal_of_kept([run.start]) or default_goal(names)
    last = results_table({"": [run]}).tail(10)
    _heading("The last epochs")
    view = of_table(last, [goal] if goal and goal.metric in last else [])
    left_out = print_fitted(replace(view, best=[]).drawn(["epoch", *names]))
    if goal:
        best = max(run.epochs, key=lambda record: goal.score(record.metrics))
        if goal.score(best.metrics) > -math.inf:
            tell(f"best {goal.metric}: {cell(best.metrics[goal.metric])} at epoch {best.epoch}")
    tell(f"not shown: {', '.join(left_out)}; a pipe gets all" if left_out else "")


def _facts(run: "RunResult", design: "Design") -> dict[str, Any]:
    sign = f"{run.status.sign} " if sys.stdout and sys.stdout.isatty() else ""
    return {
        "run": files.for_people(run.folder.path),
        "status": f"{sign}{run.status}",
        "note": join(map(first_line_of_note, ((design.notes or {}).get(run.folder.id), design.note))),
        "error": run.error,
        "next": run.outcome.next_step(files.for_people(run.folder.path / files.ERROR_LOG)),
        "attempts": run.attempts if run.attempts > 1 else "",
        "continues": run.inside if run.status.can_go_on else "",
        "mixed": "between its epochs code, data, versions, threads or settings changed, or it resumed inexactly"
        if run.mixed
        else "",
        "jobs": f"{run.jobs} runs shared the machine" if run.jobs > 1 else "",
    }


def _how(run: "RunResult") -> dict[str, Any]:
    versions = run.start.get("versions", {})
    return {
        **{
            name: run.start.get(name)
            for name in ("command", "host", "device", "device_name", "parameters", "commit")
        },
        "threads": run.threads,
        "built on": "; ".join(run.loaded),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _heading(name: str) -> None:
    from runmanager.drawing.console import wide_console

    wide_console().out(f"\n{name}", style="bold", highlight=False)
