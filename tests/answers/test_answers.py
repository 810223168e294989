"""The panel, the page, notebooks and commands give the same answers, to the last digit and name."""

import functools
import html
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from typer.testing import CliRunner

from runmanager import importances, load_runs, write_report
from runmanager.answers.answers import answers_of
from runmanager.answers.conclusion import conclude
from runmanager.answers.ranking import ranking_of
from runmanager.answers.sentences import capital
from runmanager.cli.app import app
from runmanager.core.experiment import Design, Experiment
from runmanager.core.goal import parse_goal
from runmanager.core.grid import RunBuilder
from runmanager.core.journal import Journal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.state import read_experiment
from runmanager.screen.live import best_line
from runmanager.screen.panel import Panel
from runmanager.tables.cells import duration
from tests.report.reading import Reader, by_id, parse, text_of

AXES = {"lr", "width", "dropout"}
GOALS = (parse_goal("max:test_accuracy"), parse_goal("min:cost"))


@dataclass
class Case:
    """An experiment: its runs, their numbers, and how some of them ended."""

    grid: list[dict[str, Any]]
    score: Callable[[Mapping[str, Any]], float]
    ends: Callable[[Mapping[str, Any]], Outcome] = lambda _: Outcome(Status.COMPLETED)
    design: Design = field(default_factory=Design)


def runs_of(**axes: Any) -> list[dict[str, Any]]:
    return [run._asdict() for run in RunBuilder.get_runs(axes)]


def accuracy(run: Mapping[str, Any]) -> float:
    dice = random.Random(str(run))  # noqa: S311
    lost: float = 0.09 * abs(math.log10(run["lr"]) + 2) + 0.2 / run.get("width", 32)
    return 0.97 - lost + 0.004 * dice.random()


def ending(**ends: Any) -> Callable[[Mapping[str, Any]], Outcome]:
    """Return how a run ends: keys are axes, values are their value, the status and the error."""

    def end(run: Mapping[str, Any]) -> Outcome:
        for axis, (value, status, error) in ends.items():
            if run.get(axis) == value:
                return Outcome(status, error.format(**run), 1)
        return Outcome(Status.COMPLETED)

    return end


def sampled() -> list[dict[str, Any]]:
    dice = random.Random(3)  # noqa: S311
    return [
        {"lr": 10 ** dice.uniform(-4, 0), "width": dice.randint(8, 256), "dropout": dice.uniform(0, 0.6)}
        for _ in range(30)
    ]


PLAIN = runs_of(lr=[0.1, 0.01, 0.001], width=[8, 32, 128])
SEEDS = Design(repeats=("seed",))
CASES = {
    "plain": Case(PLAIN, accuracy),
    "repeated and undecided": Case(
        runs_of(lr=[0.1, 0.01], width=[8, 32], seed=[1, 2, 3]), accuracy, design=SEEDS
    ),
    "repeated and decided": Case(runs_of(lr=[0.1, 0.01], seed=range(8)), accuracy, design=SEEDS),
    "lost repeats": Case(
        runs_of(lr=[0.1, 0.01, 1], seed=range(8)),
        accuracy,
        ending(lr=(1, Status.DIVERGED, "loss became nan in epoch 1, step {seed}")),
        SEEDS,
    ),
    "tie": Case(runs_of(lr=[0.1, 0.01], width=[8, 16]), lambda _: 0.75),
    "pruned": Case(PLAIN, accuracy, ending(width=(8, Status.PRUNED, "behind 1 of 2 runs"))),
    "failed": Case(PLAIN, accuracy, ending(width=(8, Status.FAILED, "ValueError: width 8 is too little"))),
    "diverged": Case(PLAIN, accuracy, ending(lr=(0.1, Status.DIVERGED, "loss became nan in epoch 1"))),
    "killed and out of memory": Case(
        PLAIN,
        accuracy,
        ending(lr=(0.1, Status.KILLED, "killed by signal 9"), width=(128, Status.OUT_OF_MEMORY, "no memory")),
    ),
    "without a device": Case(
        runs_of(lr=[0.1, 0.01], width=[8, 32], device=["cpu", "cuda"]),
        accuracy,
        ending(device=("cuda", Status.UNAVAILABLE, "device 'cuda' is not there")),
    ),
    "several goals": Case(PLAIN, accuracy, design=Design(GOALS[0], goals=GOALS)),
    "search": Case(sampled(), accuracy, design=Design(GOALS[0])),
    "one run": Case(runs_of(lr=[0.01]), accuracy),
    "interrupted": Case(
        PLAIN,
        accuracy,
        ending(lr=(0.1, Status.PENDING, ""), width=(128, Status.INTERRUPTED, "")),
    ),
    "nothing completed": Case(
        runs_of(lr=[0.1, 0.01]), accuracy, lambda _: Outcome(Status.FAILED, "KeyError: 'x'", 1)
    ),
}  # fmt: skip


@dataclass
class Surfaces:
    """What each surface says, as text in one line, and its tables."""

    path: Path
    panel: str
    notebook: str
    tables: dict[str, list[dict[str, str]]]  # surface -> rows of the best settings
    page: ET.Element
    best: list[dict[str, Any]]

    @property
    def all_text(self) -> str:
        """Return the text of the whole page."""
        return text_of(self.page)

    def part(self, name: str) -> str:
        """Return a part of the page, "" if it has none."""
        return next((text_of(element) for element in self.page.iter() if element.get("id") == name), "")

    @property
    def headline(self) -> str:
        return self.part("headline")


def write(path: Path, case: Case) -> None:
    folders = Experiment(path).plan(case.grid, {}, case.design)
    for folder in folders:
        outcome = case.ends(folder.params)
        if outcome.status is Status.PENDING:
            continue
        folder.path.mkdir()
        journal = Journal(folder.path, 1, {"after": 0})
        score = case.score(folder.params)
        metrics = {"loss": 1 - score, "epoch duration": 1.5, "run duration": 1.5, "test_accuracy": score}
        metrics |= {"cost": folder.params.get("width", 1) * 2.0} if case.design.goals else {}
        journal.epoch(EpochRecord(1, metrics))
        journal.end(outcome)
        journal.close()


@functools.cache  # what a case has is written once; each of these commands only reads it
def call(*arguments: Any) -> tuple[str, str]:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(part) for part in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, " ".join(result.stderr.split())


def rows_of(text: str) -> list[dict[str, str]]:
    """Read a table that is written with two blanks between its columns."""
    heading, *lines = [line for line in text.splitlines() if line.strip()]
    names = re.split(r" {2,}", heading.strip())
    return [dict(zip(names, re.split(r" {2,}", line.strip()), strict=False)) for line in lines]


def html_rows(table: ET.Element) -> list[dict[str, str]]:
    """Read a table of HTML."""
    lines = [
        [text_of(cell).strip(" ↕↑↓") for cell in row if cell.tag in ("th", "td")] for row in table.iter("tr")
    ]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


def tree_of(text: str) -> ET.Element:
    """Return HTML as a tree, with a blank between its lines and cells."""
    reader = Reader()
    reader.feed(re.sub("(<br>|</p>|</td>)", r" \1", text))
    return reader.open[0]


@pytest.fixture(scope="module", params=CASES)
def surfaces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Surfaces:
    path = tmp_path_factory.mktemp("runs") / "grid"
    write(path, CASES[request.param])
    runs = load_runs(path)
    is_over = not any(Status(word).is_open for word in runs["status"])
    panel = Panel(conclude(runs, path, is_over=is_over))
    notebook = tree_of(panel._repr_html_())
    page = parse(write_report(path, path.parent / "report.html"))
    has_best = (runs["status"] == Status.COMPLETED).any()
    tables = {"notebook": html_rows(next(notebook.iter("table")))} if panel.conclusion.table else {}
    if panel.conclusion.table:
        tables["panel"] = rows_of("\n".join(panel.conclusion.table.lines()))
        has_settings = any(element.get("id") == "settings" for element in page.iter())
        tables["page"] = html_rows(by_id(page, "settings" if has_settings else "runs"))
        names = [*AXES & {*runs}, "test_accuracy"]
        names = ["run", *names] if "seed" not in runs else [*names, "95 % interval", "repeats"]
        tables["best"] = rows_of(call("best", path, "--limit", 5, "--columns", ",".join(names))[0])
    best = json.loads(call("best", path, "--json", "--limit", 5)[0]) if has_best else []
    text = " ".join(str(panel).split())
    return Surfaces(path, text, html.unescape(text_of(notebook)), tables, page, best)


@pytest.mark.slow(everywhere=True)
def test_the_headline_is_the_same_everywhere(surfaces):
    headline = surfaces.headline

    assert f" {headline} " in surfaces.panel
    assert f" {headline} " in surfaces.notebook
    assert surfaces.page.find(".//title").text.endswith(f"grid: {surfaces.part('headline')}")
    if surfaces.best:
        assert headline in call("best", surfaces.path)[1]
        assert headline in call("list", surfaces.path)[1]


def test_what_belongs_to_the_headline_is_the_same_everywhere(surfaces):
    lead = surfaces.part("lead")
    sentences = [
        sentence.removesuffix(".") for sentence in re.split(r"(?<=\.) (?=[A-Z]|lr=)", lead) if sentence
    ]

    for sentence in sentences:
        assert sentence in surfaces.panel
        assert sentence in surfaces.notebook


def test_the_best_setting_and_its_number_are_those_of_the_table(surfaces):
    if not surfaces.best:
        assert surfaces.part("headline") == "No run has completed"
        return
    best = surfaces.best[0]
    number = best.get("test_accuracy mean", best.get("test_accuracy"))
    said = f"{surfaces.headline} {surfaces.part('lead')} {call('list', surfaces.path)[1]}"
    named = re.findall(r"test_accuracy(?: so far)?:? ([\d.]+\d)", said)
    assert named
    assert all(float(text) == pytest.approx(number, abs=5e-5) for text in named)
    for axis, value in re.findall(r"(\w+)=([\d.]+[\d]|\d)", re.split(r" leads | than | and |, ", said)[0]):
        assert best[axis] == pytest.approx(float(value), rel=5e-4)  # four digits
    if "run" in best:
        assert said.startswith(f"Run {best['run']} ")


def test_the_tables_have_the_same_settings_in_the_same_order(surfaces):
    for surface, rows in surfaces.tables.items():
        for row, expected in zip(rows, surfaces.best, strict=False):
            number = expected.get("test_accuracy mean", expected.get("test_accuracy"))
            cell = row.get("test_accuracy", row.get("mean test_accuracy", ""))
            assert float(cell) == pytest.approx(number, abs=5.1e-5), surface
            for axis in AXES & {*row}:
                assert float(row[axis]) == pytest.approx(expected[axis], rel=1e-3)
            assert "".join(re.findall(r"\d+", row.get("run", ""))[:1]) == str(expected.get("run", ""))
            assert row.get("repeats", "") in ("", str(expected.get("test_accuracy n", "")))
    assert len({row.get("95 % interval") for rows in surfaces.tables.values() for row in rows[:1]}) <= 1


def test_the_verdict_is_the_headline(surfaces):
    verdict = json.loads(call("decide", surfaces.path, "--json")[0])

    assert call("decide", surfaces.path)[0].splitlines()[0] == verdict["sentence"]
    if len(surfaces.best) < 2 or "run" in surfaces.best[0]:
        return
    assert verdict["sentence"].startswith(surfaces.part("headline"))
    assert all(surfaces.best[0][axis] == value for axis, value in verdict["better"].items())
    means = [row["test_accuracy mean"] for row in surfaces.best[:2]]
    assert verdict["difference"] == pytest.approx(means[0] - means[1], abs=1e-9)


def test_the_counts_are_the_same_everywhere(surfaces):
    counts = Counter(run["status"] for run in json.loads(call("list", surfaces.path, "--json")[0]))
    cards = {text_of(card[0]): text_of(card[1]) for card in next(surfaces.page.iter("dl"))}

    for status, number in counts.items():
        assert f" · {number} {status}" in surfaces.panel
        assert f" · {number} {status}" in surfaces.notebook
        assert f" {number} {status}" in call("list", surfaces.path)[1]
        if status != "completed":
            assert cards[status] == f"{number}"
        is_fault = Status(status).is_lost or status == "unavailable"
        assert (status in surfaces.part("wrong")) == is_fault
    num_left = sum(number for status, number in counts.items() if Status(status).is_open)
    assert (f"{num_left} of {counts.total()} runs" in surfaces.part("left")) == bool(num_left)
    (card,) = (cards[name] for name in ("runs", "run", "completed") if name in cards)
    assert card.split()[0] == f"{counts['completed']}"


def test_failures_have_the_same_cause_runs_and_next_step_everywhere(surfaces):
    causes = [element for element in surfaces.page.iter() if str(element.get("id")).startswith("cause-")]

    statuses = [run["status"] for run in json.loads(call("list", surfaces.path, "--json")[0])]
    assert bool(causes) == any(Status(word).is_lost or word == "unavailable" for word in statuses)
    for cause in causes:
        status, which = (text_of(part).strip() for part in (cause.find("h3/span"), cause.find("h3")))
        which = which.removeprefix(status).strip()
        error, _, step = text_of(cause.find("p")).partition("Next: ")
        assert f" {status}: {which} " in surfaces.panel
        assert f" {status}: {which}" in surfaces.notebook
        assert step.removesuffix(".") in surfaces.panel
        first = re.search(r"run (\d+)", text_of(cause))
        assert first
        for surface in (surfaces.panel, surfaces.notebook):
            assert re.split(r"run \d", error)[0] in surface
        lines = call("show", surfaces.path / first[1])[0].splitlines()
        facts = dict(line.split(maxsplit=1) for line in lines if " " in line)
        assert facts["status"] == status
        assert facts["next"].split("; ")[-1].replace(" or --retry-failed", "") in step.replace(
            "them", "it"
        ).replace("the runs", "the run")


def test_what_matters_is_the_same_everywhere(surfaces):
    matters = surfaces.part("matters")

    assert matters in surfaces.panel
    assert matters in surfaces.notebook
    assert ("matters " in surfaces.panel.split(" next ")[0]) == bool(matters)
    goals = ranking_of(load_runs(surfaces.path)).goals if "alone changes" in matters else ()
    for surface in (surfaces.panel, surfaces.notebook, surfaces.all_text):
        assert all(f" alone changes {goal.metric} by " in surface for goal in goals)
    bars = next((element for element in surfaces.page.iter() if element.get("id") == "changes"), None)
    if bars is not None and matters:
        named = re.findall(r"(?:Changing |^|, |; )(\w+)(?: alone| matters most|(?= by | \d))", matters)
        rows = [text_of(row[0]) for row in bars.iter("tr")]
        assert [name for name in rows if name != "repeats"] == named
    if "matters most" in matters:
        assert importances(load_runs(surfaces.path))["axis"].tolist() == named


def test_the_time_is_the_same_everywhere(surfaces):
    text = duration(load_runs(surfaces.path)["run duration"].sum())

    assert f"its runs took {text} before" in surfaces.panel
    assert f"run time {text}" in text_of(next(surfaces.page.iter("dl"))).replace(
        "run time", "run time "
    ).replace("  ", " ")


def test_the_count_of_ranked_runs_is_the_same_everywhere(surfaces):
    if not surfaces.best:
        return
    findings = ranking_of(load_runs(surfaces.path))
    said = surfaces.panel, surfaces.notebook, call("best", surfaces.path)[1]

    number, total = len(findings.settings), len(findings.all_settings)
    assert total == len({tuple(v for k, v in run.items() if k != "seed") for run in grid_of(surfaces)})
    is_said = findings.count in surfaces.all_text or capital(findings.count) in surfaces.all_text
    assert is_said == (total > 1)
    assert number == total or f"{number} of {total} {findings.noun}s " in f"{findings.count} "
    if number < total and number > 1:
        assert all(findings.count in part for part in said)
    for text in (*said, surfaces.all_text):
        assert {*re.findall(r"(\d+) of \d+ (?:runs|settings) (?:is|are) ranked", text)} <= {str(number)}


def grid_of(surfaces):
    return [dict(run.folder.params) for run in read_experiment(surfaces.path)]


def test_an_interval_beside_a_verdict_says_what_both_are_of(surfaces):
    if not surfaces.best:
        return
    findings = answers_of(load_runs(surfaces.path))
    has_interval = any(row.get("95 % interval") for row in surfaces.tables.get("panel", ()))

    texts = surfaces.panel, surfaces.notebook, surfaces.all_text, call("best", surfaces.path)[1]
    for text in texts:
        assert ("intervals are per setting" in text) == (findings.has_verdict and has_interval)
        assert not has_interval or findings.scope in text


def test_the_run_duration_has_one_name_and_number(surfaces):
    listed = rows_of(call("list", surfaces.path, "--columns", "run,run duration")[0])

    for surface in ("panel", "notebook", "page"):
        for row in surfaces.tables.get(surface, ()):
            assert row.get("run duration", "1.50 s") in ("1.50 s", "")
            assert "time" not in row
    assert {row.get("run duration", "1.5") for row in listed} == {"1.5"}


def test_the_live_line_has_the_best_number(surfaces):
    results = read_experiment(surfaces.path)
    live = best_line(results, Experiment(surfaces.path).design)

    if not surfaces.best:
        assert not live
        return
    best = surfaces.best[0]
    name, number, *_ = live.split()
    assert name == "test_accuracy"
    assert float(number) == pytest.approx(best.get("test_accuracy mean", best.get("test_accuracy")), abs=5e-5)
    assert "run" not in best or f" run {best['run']}" in str(live)


def test_what_changes_the_goal_is_not_said_from_the_survivors_of_pruning():
    rows = [{"lr": lr, "width": width, "accuracy": lr + width} for lr in (0.1, 0.2, 0.3) for width in (1, 2)]
    runs = pd.DataFrame(rows).assign(status=["completed"] * 3 + ["pruned"] * 3)
    runs.attrs["hyperparameters"] = ["lr", "width"]

    answers = answers_of(runs)

    assert not answers.matters.bars
    assert "cannot be said" in answers.matters.sentence
