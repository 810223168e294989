"""The HTML file of a report, written once, or again whenever runs change."""

import base64
import hashlib
import html
import os
import re
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
from runmanager.core import files
from runmanager.core.wording import counted, printable
from runmanager.errors import InvalidArgumentError, StorageError
from runmanager.report import curves, points, sections
from runmanager.report.model import ReportData, report_data, runs_of_table
from runmanager.report.page_data import page_data
from runmanager.report.timeline import attempts, timeline, times
from runmanager.tables.cells import cell
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
_LEAST_S = 2.0  # minimum time between two updates
_SCRIPTS = ("where", "state", "address", "reading", "mini", "views", "figures", "page")
_ASSETS = Path(__file__).parent / "assets"
_WHOLE = re.compile(r"\(?(?:--[\w-]+|[\w.]+=(?:&quot;|[\w.:+-])*|95 %|[Rr]un \d+)[),;]*")


class WrittenReport(_Path):
    """The path of a report file; notebooks show it as a link."""

    def _repr_html_(self) -> str:
        """Return a link relative to the notebook's folder, as its server serves only files in that folder."""
        name = html.escape(_relative(self, Path()).encode("utf-8", "replace").decode())
        return f'<a href="{_address(self, Path())}" target="_blank" rel="noopener">{name}</a>'


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
        target: The HTML file; it is replaced atomically. By default, it is ``report.html`` in the folder of the
            experiment, ``index.html`` in the root, and ``report.html`` here for a list or a table.
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

    def page_of(path: Paths | pd.DataFrame) -> tuple[ReportData, str]:
        data, damaged = _read(path, goal, repeats)
        if base is not None:
            decides = str(data.goal) if data.order else None
            against = show(compare(data.runs, None, decides, base=base, repeats=list(data.ranking.repeats)))
            data = replace(data, against=against._repr_html_())
        return data, render(data, damaged, seconds)

    if not isinstance(path, str | os.PathLike):
        return _write(Path(target or files.REPORT), page_of(path)[1])
    first, *more = folders = folders_of(Path(path)) or [Path(path)]
    if not more:
        return _write(Path(target or first / files.REPORT), page_of(path)[1])
    target = Path(target or Path(path, "index.html"))
    if target.absolute() in [(folder / files.REPORT).absolute() for folder in folders]:
        rule = f"{target} is the page of an experiment"
        raise InvalidArgumentError(f"{rule}: write the index elsewhere, as {Path(path, 'index.html')}")
    entries: list[dict[str, Any]] = []
    refused: list[InvalidArgumentError] = []
    for folder in folders:
        try:
            data, page = page_of(folder)
        except InvalidArgumentError as error:  # it has no runs, or they lack the metric
            refused.append(error)
            entries.append({"title": folder.name, "headline": str(error)})
            continue
        entries.append(_entry(data, is_over=seconds is None))
        with suppress(StorageError):  # the folder is read-only: the index has its verdict without a link
            entries[-1]["address"] = _address(_write(folder / files.REPORT, page), target.parent)
    if len(refused) == len(entries):
        raise refused[0]
    index = _template("index.html").render(
        title=Path(path).resolve().name,
        count=counted(len(entries), "experiment"),
        entries=entries,
        seconds=seconds,
        style=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        written=f"{datetime.now(tz=UTC):%Y-%m-%d %H:%M} UTC",
    )
    return _write(target, index)


def _relative(page: Path, folder: Path) -> str:
    """Return the path of a page relative to a folder, with slashes."""
    try:
        return os.path.relpath(page, folder).replace(os.sep, "/")
    except (OSError, ValueError):  # the working directory was deleted, or the page is on another drive
        return os.fspath(page)


def _address(page: Path, folder: Path) -> str:
    return quote(_relative(page, folder).encode("utf-8", "surrogateescape"))


def _entry(data: ReportData, *, is_over: bool) -> dict[str, Any]:
    """Return what the index says about an experiment."""
    facts = [f"{counted(len(data.results), 'run')}: {statuses_in_words(run.status for run in data.results)}"]
    if data.order:
        facts.append(f"goal {' and '.join(map(str, data.ranking.goals))}")
    if left := sections.left(data, is_over=is_over):
        facts.append(left)
    note = first_line_of_note(data.note)
    return {"title": data.title, "note": note, "headline": data.answers.headline, "facts": facts}


def _write(target: Path, page: str) -> WrittenReport:
    files.write_file(target, page.encode("utf-8", "backslashreplace"))
    return WrittenReport(target)


def _read(
    path: Paths | pd.DataFrame, goal: str | Sequence[str] | None, repeats: str | Sequence[str] | None
) -> tuple[ReportData, Sequence[str]]:
    """Read the data of a page, and messages about damaged files."""
    if isinstance(path, pd.DataFrame):
        return report_data("results", runs_of_table(path), goal, repeats, attrs=path.attrs), ()
    results, damaged = read_results(path)
    experiments = {name: runs for name, runs in results if runs}
    if not experiments:
        where = path if isinstance(path, str | os.PathLike) else "these paths"
        raise InvalidArgumentError(no_runs(where))
    data = report_data(" and ".join(experiments), experiments, goal, repeats)
    if not isinstance(path, str | os.PathLike):
        first, *others = experiments.items()
        sides = [(first[0], other[0], diff_of(first[1], other[1])) for other in others]
        data = replace(data, differences=sides)
    return data, damaged


def render(data: ReportData, damaged: Sequence[str] = (), seconds: float | None = None) -> str:
    """Return the HTML page of a report."""
    busy = attempts(data.results)
    effects = points.effect_figures(data)
    overview = points.best_so_far(data, busy) if data.is_searched else points.by_rank(data)
    if len(data.ranking.goals) > 1:
        effects = [overview, *effects] if overview and data.is_searched else effects
        overview = points.by_two_goals(data)
    elif len(effects) == 1 and not data.is_searched:
        overview = effects.pop()
    table = sections.table_of_runs(data)
    now = datetime.now(tz=UTC)
    script = "\n".join((_ASSETS / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template("page.html").render(
        data=data,
        answers=data.answers,
        sections=sections,
        is_many=len(data.results) > curves.MANY,
        style=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        script=script,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        table=table,
        page_data=page_data(data, [(name, kind) for name, kind, *_ in table["columns"]]),
        note=_markdown(data.note),
        overview=overview,
        effects=effects,
        together=sections.together(data),
        curves=curves.learning(data),
        legend=sections.legend(data),
        timeline=timeline(busy, data),
        facts=sections.facts(data),
        times=times(busy, is_over=data.answers.is_over),
        left=sections.left(data, is_over=seconds is None and not data.is_foreign),
        seconds=seconds,
        cell=cell,
        counted=counted,
        written=f"{now:%Y-%m-%d %H:%M} UTC",
        written_s=int(now.timestamp()),
        damaged=damaged,
    )


@cache
def _template(name: str) -> "Template":
    """Return a template; it is compiled once per process."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_printable,
    )  # fmt: skip
    environment.filters["whole"] = _whole
    return environment.get_template(name)


def _whole(text: str) -> str:
    """Return a sentence as HTML whose options and settings stay on one line."""
    return _WHOLE.sub(r'<span class="whole">\g<0></span>', html.escape(_printable(text)))


def _printable(value: Any) -> Any:
    """Escape control characters in every text that the template writes."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(map(printable, value.split("\n")))


def _markdown(note: str) -> str:
    """Return a note's Markdown as HTML; its own HTML is escaped, and a link leads to the web only."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).disable(["image", "entity"])
    parser.validateLink = lambda url: url.lower().startswith(("http://", "https://"))  # type: ignore[method-assign]
    tokens = parser.parse(_printable(note))
    for token in tokens:
        token.tag = "h2" if token.type.startswith("heading") else token.tag  # the page has its h1
        for child in token.children or ():
            child.attrs.pop("title", None)  # it may have control characters, as character references
    return str(parser.renderer.render(tokens, parser.options, {}))


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
            results, _ = read_results(path)
            now = [(name, run.folder.id, run.status, run.journals) for name, runs in results for run in runs]
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
