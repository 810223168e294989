"""The HTML file of a report, written once, or again whenever runs change."""

import base64
import hashlib
import html
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

from runmanager.answers.compare import compare
from runmanager.answers.differences import diff_of
from runmanager.answers.sentences import statuses_in_words
from runmanager.answers.show import show
from runmanager.answers.usual_goals import companion
from runmanager.answers.view import TIMES
from runmanager.core import files
from runmanager.core.experiment import read_runs
from runmanager.core.goal import KEPT
from runmanager.core.outcome import Status
from runmanager.core.wording import counted, printable
from runmanager.errors import InvalidArgumentError, StorageError
from runmanager.report import charts, curves, search_text, sections, slices, text, timeline
from runmanager.report.model import PageAxis, ReportData, report_data, runs_of_table
from runmanager.report.page_data import page_data
from runmanager.report.run_colors import NUM_COLORS, color_of, colored_axis
from runmanager.report.svg import spaced
from runmanager.tables.cells import aligned, cell, durations
from runmanager.tables.columns import metrics_of
from runmanager.tables.loading import Paths, read_results
from runmanager.tables.notes import first_line_of_note
from runmanager.tables.roots import absolute_path, no_runs
from runmanager.tables.roots import experiments as folders_of

if TYPE_CHECKING:
    from jinja2 import Template

    _Path = Path
else:
    _Path = type(Path())  # before Python 3.12, subclasses of Path itself do not work

_SHARE = 20  # writing the page takes at most 1 / _SHARE of the time
_LEAST_S = 2.0  # minimum time between two checks for changes
_MOST_AXES = 8  # maximum number of panels of effects
_MOST_ROWS = 1000  # maximum number of table rows in the file; the script adds further rows on demand
_SCRIPTS = (
    "where.js", "state.js", "address.js", "reading.js", "mini.js", "views.js",
    "figures.js", "page.js",
)  # fmt: skip
_ASSETS = Path(__file__).parent / "assets"


class WrittenReport(_Path):
    """The path of a report file; notebooks show it as a link."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.as_posix()!r})"

    def _repr_html_(self) -> str:
        """Return a link relative to the notebook's folder, as its server serves only files in that folder."""
        try:
            relative = os.path.relpath(self)
        # the errors if the file is on another drive, or the working directory was deleted
        except (OSError, ValueError):
            relative = os.fspath(self)
        address = quote(relative.replace(os.sep, "/").encode("utf-8", "surrogateescape"))
        name = html.escape(relative.encode("utf-8", "replace").decode())
        return f'<a href="{address}" target="_blank" rel="noopener">{name}</a>'


def write_report(
    path: Paths | pd.DataFrame = "runs",
    target: str | os.PathLike[str] | None = None,
    goal: str | Sequence[str] | None = None,
    *,
    repeats: str | Sequence[str] | None = None,
    base: Mapping[str, Any] | None = None,
) -> WrittenReport:
    """Write one HTML file that shows which run is best, and why.

    The file needs no network: figures, style and script are in the file. All text that comes from runs is
    escaped.

    Args:
        path: One experiment, a list of several, or their root. With a list, the page has the experiments side
            by side, with the differences between the first and each other experiment. For a root with several
            experiments, the page of each is ``report.html`` in its folder, and the file is an index of them.
            Or a table with one row per run, as from `load_table`: its page has no curves, times and commands.
        target: The HTML file; it is replaced atomically. By default, it is ``report.html``, or ``index.html``
            in the root.
        goal: The metric that ranks the runs, as in `best`. The first metric of a list ranks the runs, and the
            page also shows the Pareto front of all metrics, as in `pareto`.
        repeats: The axes that only repeat a setting, as in `best`.
        base: The hyperparameters of one setting, as in `compare`: the page then compares all settings with it.

    Returns:
        The path of the file; a notebook shows it as a link.

    Raises:
        InvalidArgumentError: The path does not exist or holds no runs.
        InvalidArgumentError: The metric or axis does not exist, the direction of a metric is unknown, or the
            experiments have different goals.
        StorageError: The file could not be written; an existing file is kept.

    Example:
        >>> str(write_report("runs/circle", "report.html", goal="accuracy"))
        'report.html'
    """
    return write_page(path, target, goal, repeats, base)


def write_page(
    path: Paths | pd.DataFrame,
    target: str | os.PathLike[str] | None = None,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
    base: Mapping[str, Any] | None = None,
    *,
    seconds: float | None = None,
) -> WrittenReport:
    """Write a report, or the index of a root; with `seconds`, the page reloads itself after this time."""
    if isinstance(path, str | os.PathLike) and len(folders := folders_of(Path(path))) > 1:
        return _write_index(Path(path), folders, target, goal, repeats, base, seconds)
    data, damaged = _read(path, goal, repeats, base)
    return _write(target or files.REPORT, render(data, damaged, seconds))


def _write_index(
    root: Path,
    folders: Sequence[Path],
    target: str | os.PathLike[str] | None,
    goal: str | Sequence[str] | None,
    repeats: str | Sequence[str] | None,
    base: Mapping[str, Any] | None,
    seconds: float | None,
) -> WrittenReport:
    """Write the page of each experiment, and the index of these pages."""
    target = Path(target or root / "index.html")
    pages, refused = {}, {}
    for folder in folders:
        if not read_runs(folder):
            continue
        try:
            pages[folder / files.REPORT] = _read(folder, goal, repeats, base)
        except InvalidArgumentError as error:  # its runs lack the metric
            refused[folder.name] = error
    if not pages:
        raise next(iter(refused.values()), InvalidArgumentError(no_runs(root)))
    if target.absolute() in [page.absolute() for page in pages]:
        rule = f"{target} is the page of an experiment"
        raise InvalidArgumentError([f"{rule}: write the index elsewhere, as {root / 'index.html'}"])
    entries = []
    for page, (data, damaged) in pages.items():
        entry = _entry(data, is_over=seconds is None)
        with suppress(StorageError):  # the folder is read-only: the index has its verdict without a link
            _write(page, render(data, damaged, seconds))
            entry["address"] = _address(page, target)
        entries.append(entry)
    entries += [
        {"title": printable(name), "headline": printable(str(error))} for name, error in refused.items()
    ]
    written = _template("index.html").render(
        title=printable(root.resolve().name),
        count=counted(len(entries), "experiment"),
        entries=entries,
        seconds=seconds,
        style=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        written=f"{datetime.now(tz=UTC):%Y-%m-%d %H:%M} UTC",
    )
    return _write(target, written)


def _address(page: Path, target: Path) -> str:
    """Return the address of a page in the index."""
    try:
        relative = os.path.relpath(page, target.parent).replace(os.sep, "/")
    except ValueError:  # on another drive
        return page.absolute().as_uri()
    return quote(relative.encode("utf-8", "surrogateescape"))


def _entry(data: ReportData, *, is_over: bool) -> dict[str, Any]:
    """Return what the index says about an experiment."""
    goals = " and ".join(map(str, data.ranking.goals)) if data.order else ""
    counts = statuses_in_words(run.status for run in data.results)
    begun = sections.facts(data).get("begun", [])
    facts = [
        f"{counted(len(data.results), 'run')}: {counts}",
        goals and f"goal {goals}",
        *(f"begun {t}" for t in begun),
    ]
    return {
        "title": data.title,
        "note": first_line_of_note(data.note),
        "headline": data.answers.headline,
        "facts": [*filter(None, facts), *filter(None, [text.left_sentence(data.answers, is_over=is_over)])],
    }


def _write(target: str | os.PathLike[str], page: str) -> WrittenReport:
    files.write_file(Path(target), page.encode("utf-8", "backslashreplace"))
    return WrittenReport(target)


def _read(
    path: Paths | pd.DataFrame,
    goal: str | Sequence[str] | None,
    repeats: str | Sequence[str] | None,
    base: Mapping[str, Any] | None,
) -> tuple[ReportData, Sequence[str]]:
    """Read the data of a page, and messages about damaged files."""
    damaged: Sequence[str] = ()
    if isinstance(path, pd.DataFrame):
        data = report_data("results", runs_of_table(path), goal, repeats, attrs=path.attrs)
    else:
        data, damaged = _read_folders(path, goal, repeats)
    if base is not None:
        decides = str(data.goal) if data.order else None
        against = show(compare(data.runs, None, decides, base=base, repeats=list(data.ranking.repeats)))
        data = replace(data, against=against._repr_html_())
    return data, damaged


def _read_folders(
    path: Paths, goal: str | Sequence[str] | None, repeats: str | Sequence[str] | None
) -> tuple[ReportData, Sequence[str]]:
    results, damaged = read_results(path)
    experiments = dict(results)
    if not any(experiments.values()):
        raise InvalidArgumentError(
            no_runs(path) if isinstance(path, str | os.PathLike) else "no runs under these paths"
        )
    is_one = isinstance(path, str | os.PathLike)
    title = " and ".join(experiments)
    data = report_data(printable(title), experiments, goal, repeats)
    first, *others = [(name, runs) for name, runs in experiments.items() if runs]
    if not is_one and others:
        sides = [(printable(first[0]), printable(other[0]), diff_of(first, other)) for other in others]
        data = replace(data, differences=sides)
    return data, damaged


def render(data: ReportData, damaged: Sequence[str] = (), seconds: float | None = None) -> str:
    """Return the HTML page of a report."""
    colored = colored_axis(data.axes)
    busy = timeline.attempts(data.results)
    table = _table(data)
    now = datetime.now(tz=UTC)
    script = "\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template("page.html").render(
        data=data,
        answers=data.answers,
        text=text,
        is_many=len(data.results) > curves.MANY,
        style=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        script=script,
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        cards=sections.cards(data),
        settings=sections.settings(data),
        table=table,
        page_data=page_data(data, table, _metrics_of_curves(data), colored),
        columns_css=_columns_css(table),
        note=_markdown(data.note),
        legend=_legend(colored, [i for i, run in enumerate(data.results) if run.epochs]) if colored else [],
        landscape=slices.two_axes(data),
        dots=_legend(colored, data.rated) if colored else [],
        history=slices.best_so_far(data, busy, colored) if data.is_searched else None,
        legend_name=colored.name if colored else "",
        curves=_curves(data, colored),
        curves_key=curves.key(data, _metrics(data)[0], colored) if _metrics(data) else [],
        effects=_effects(data, colored),
        timeline=timeline.timeline(busy, colored),
        causes=sections.causes(data),
        shared=text.shared_sentence(data),
        basis=text.basis(data),
        left=text.left_sentence(data.answers, is_over=seconds is None and not data.is_foreign),
        differences=data.differences,
        seconds=seconds,
        number=cell,
        facts=sections.facts(data),
        written=f"{now:%Y-%m-%d %H:%M} UTC",
        written_s=int(now.timestamp()),
        damaged=[printable(problem) for problem in damaged],
    )


@cache
def _template(name: str) -> "Template":
    """Return a template; it is compiled once per process."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_ASSETS)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_written,
    )  # fmt: skip
    return environment.get_template(name)


def _written(value: Any) -> Any:
    """Escape control characters in every text that the template writes."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(map(printable, value.split("\n")))


def _markdown(note: str) -> str:
    """Return a note's Markdown as HTML; its own HTML is escaped, and a link leads to the web only."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).disable(["image", "entity"])
    parser.validateLink = lambda url: url.lower().startswith(("http://", "https://"))  # type: ignore[method-assign]
    tokens = parser.parse("\n".join(map(printable, note.split("\n"))))
    for token in tokens:
        token.tag = "h2" if token.type.startswith("heading") else token.tag  # the page has its h1
        for child in token.children or ():
            child.attrs.pop("title", None)  # it may have control characters, as character references
    return str(parser.renderer.render(tokens, parser.options, {}))


def _table(data: ReportData) -> dict[str, Any]:
    """Return the table of runs: columns of varying hyperparameters and results, rows from best to worst."""
    runs = data.runs
    goals = [goal.metric for goal in data.goals if goal.metric != data.ranking.goal.metric]
    others = list(dict.fromkeys([*goals, *_metrics(data)[1:]]))
    names = ["status"] if len(set(runs["status"])) > 1 else []
    numbers = ["epochs"] if len(set(runs["epochs"])) > 1 else []
    times = [name for name in ("epoch duration", "run duration") if not runs[name].isna().all()]
    numbers, times = (
        [name for name in names if name not in (data.goal.metric, *goals)] for names in (numbers, times)
    )
    has_numbers = not runs[data.ranking.goal.metric].isna().all()
    columns = [("run", "text"), *[(data.goal.metric, "number")] * has_numbers]
    columns += [(axis.name, "number" if axis.is_ordered else "text") for axis in data.axes]
    columns += [(name, "number") for name in (*others, *numbers, *times)] + [(name, "text") for name in names]
    shares, listed = _shares(data), data.ranked[:_MOST_ROWS]
    write = {name: durations if name in times else aligned for name in (*others, *numbers, *times)}
    score, *measured = (
        written([v if math.isfinite(v) else math.nan for v in map(float, runs[name].iloc[listed])])
        for name, written in ((data.ranking.goal.metric, aligned), *write.items())
    )
    rows = []
    for position, index in enumerate(listed):
        cells: list[tuple[str, float | None]] = [(data.names[index], None)]
        cells += [(score[position], shares.get(index))] * has_numbers
        cells += [(axis.labels[axis.codes[index]], None) for axis in data.axes]
        cells += [(column[position], None) for column in measured]
        cells += [(str(runs[name].iloc[index]), None) for name in names]
        rows.append({"index": index, "cells": cells})
    essential = {0, 1, *range(2, 2 + min(6, len(data.axes)))}
    lasts = [*others[: len(goals) or 1], *times[-1:], *names]
    lasts += numbers if Status.PRUNED in data.answers.counts else []  # their scores are of different epochs
    essential |= {number for number, (name, _) in enumerate(columns) if name in lasts}
    narrow = {0, 1, *range(2, 2 + min(2, len(data.axes)))}
    return {"columns": columns, "rows": rows, "essential": essential, "narrow": narrow}


def _columns_css(table: dict[str, Any]) -> str:
    """Return the CSS rules that hide inessential columns of the table; a phone hides more columns."""
    numbers = range(len(table["columns"]))

    def hidden(kept: set[int]) -> str:
        chosen = ",".join(f":nth-child({number + 1})" for number in numbers if number not in kept)
        return f"#runs:not(.all) :is(th,td):is({chosen}){{display:none}}" if chosen else ""

    return f"{hidden(table['essential'])}@media (max-width:640px){{{hidden(table['narrow'])}}}"


def _shares(data: ReportData) -> dict[int, float]:
    """Return the position of each score on a scale from the worst (0) to the best (100)."""
    if not data.order:
        return {}
    scores = sorted((data.scores[i] for i in data.order), reverse=data.goal.is_larger_better)
    best, worst = scores[0], scores[-1]
    return {i: 100 * abs(data.scores[i] - worst) / (abs(best - worst) or 1) for i in data.order}


def _legend(colored: PageAxis, runs: Sequence[int]) -> list[tuple[str, str]]:
    """Return the (value, color) pairs of these runs for the legend; of many values, only some are returned."""
    codes = sorted({colored.codes[index] for index in runs})
    return [(colored.labels[code], color_of(colored, code)) for code in spaced(codes, NUM_COLORS)]


def _metrics(data: ReportData) -> list[str]:
    """Return the metric and its companions: the matching loss or accuracy, and the metrics on training data."""
    metric = data.ranking.metric
    names = [metric, companion(metric, metrics_of(data.runs))]
    names += ["accuracy"] if metric.endswith(("accuracy", "loss")) else []
    runs = data.runs
    return [name for name in dict.fromkeys([*names, "loss"]) if name in runs and not runs[name].isna().all()]


def _metrics_of_curves(data: ReportData) -> list[str]:
    """Return the goals, except durations; with a single goal, also its companion."""
    goals = [goal.metric.removeprefix(KEPT) for goal in data.goals if goal.metric not in TIMES]
    return goals if len(goals) > 1 else _metrics(data)[:2]


def _curves(data: ReportData, colored: PageAxis | None) -> list[dict[str, str]]:
    """Return the learning curves of the metric and its companion, each with a sentence."""
    if max(len(run.epochs) for run in data.results) < 2:  # noqa: PLR2004 - a curve needs two
        return []
    figures = []
    for number, metric in enumerate(_metrics_of_curves(data)):
        words = text.curves_sentence(data, metric)
        records = (record for run in data.results for record in run.epochs)
        if any(math.isfinite(record.metrics.get(metric, math.nan)) for record in records):
            if outside := curves.num_outside(data, metric):
                words += f" {counted(outside, 'curve')} {'leaves' if outside == 1 else 'leave'} the frame."
            figure = curves.curves(data, metric, colored, words, f"curves-{number}")
            figures.append({"name": metric, "figure": figure, "words": words})
    return figures


def _effects(data: ReportData, colored: PageAxis | None) -> list[dict[str, Any]]:
    effects = []
    for number, axis in enumerate(data.compared[:_MOST_AXES]):
        words = search_text.range_sentence(data, axis) if data.is_searched else text.effect_sentence(data, axis)
        draw = slices.one_axis if axis.is_sampled else charts.effect
        figure = draw(data, axis, words, f"effect-{number}", colored)
        effects.append({"name": axis.name, "figure": figure, "words": words})
    return effects


def watch_runs(
    path: Paths,
    target: str | os.PathLike[str] | None = None,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
    base: Mapping[str, Any] | None = None,
    *,
    say: Callable[[str], None],
) -> None:
    """Write a report, and write it again whenever runs have changed, until Ctrl-C."""
    before: Any = None
    interval = _LEAST_S
    try:
        while True:
            started = time.monotonic()
            now = _state(path)
            if now != before:
                page = write_page(path, target, goal, repeats, base, seconds=interval)
            if before is None:
                say(f"{absolute_path(page)} is written and renewed until Ctrl-C: open it in a browser")
            before = now
            interval = max(_LEAST_S, _SHARE * (time.monotonic() - started))
            time.sleep(interval)
    except KeyboardInterrupt:
        page = write_page(path, target, goal, repeats, base)
        say(f"{absolute_path(page)} is written for the last time")


def _state(path: Paths) -> list[Any]:
    """Return a value that differs from earlier values if any run has changed."""
    results, _ = read_results(path)
    return [(name, run.folder.id, run.status, run.journals) for name, runs in results for run in runs]
