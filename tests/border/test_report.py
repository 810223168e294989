"""The page of `write_report` (docs/report.md, docs/command-line.md)."""

import contextlib
import itertools
import math
import re
import time
from importlib.metadata import version
from unittest import mock

import pytest

from runmanager import IntRange, LogUniform, RunBuilder, SuccessiveHalving, write_report
from tests.border.experiments import Scored, execute
from tests.border.pages import by_id, parse, text_of
from tests.border.reading import flip
from tests.browser import wait_until

GRID = {"lr": [0.1, 0.01], "optimizer": ["adam", "sgd"], "seed": range(3), "clip": [1.0]}
EVIL = "<script>alert(1)</script>"


def scores(run):
    """Let run 2 fail, and run 5 diverge."""
    if (run.lr, run.optimizer, run.seed) == (0.1, "adam", 1):
        raise ValueError("<b>no</b>")
    diverges = (run.lr, run.optimizer, run.seed) == (0.1, "sgd", 1)
    accuracy = 0.9 - 0.2 * (run.lr == 0.1) - 0.05 * (run.optimizer == "sgd") + 0.001 * run.seed
    loss = math.nan if diverges else 1 - accuracy
    return {"loss": loss, "test_accuracy": accuracy, "test_loss": 1 - accuracy}


def page_of(root, grid, scores, *, goal=None, **options):
    execute(root, grid, scores, goal=goal, **options)
    return parse(write_report(root / "e", root / "page.html"))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page of 12 runs of three epochs, one failed and one diverged, with a note."""
    root = tmp_path_factory.mktemp("runs")
    execute(root, GRID, scores, epochs=3, repeats="seed", note="does <lr> matter?\n\n- **half** it")
    return write_report(root / "e", root / "page.html")


@pytest.fixture(scope="module")
def page(report):
    return parse(report)


@pytest.fixture(scope="module")
def text(page):
    return text_of(page)


def rows(page):
    """Return the cells of the rows of the first table that has a heading `run` or `lr`."""
    for table in page.iter("table"):
        heading, *rows = [[text_of(cell).strip(" ↕↑↓") for cell in row] for row in table.iter("tr")]
        if "lr" in heading and "status" in heading:
            return [dict(zip(heading, row, strict=False)) for row in rows]
    raise AssertionError("no table of runs")


# What it says


def test_the_page_has_the_verdict_the_note_in_markdown_failures_with_a_next_step_and_versions(report, text):
    for part in ("lr=0.01 optimizer=adam", "do not decide", "0.901", "95 %", "Changing lr alone"):
        assert part in text[:2000]
    further = (
        "does <lr> matter?",
        "ValueError: <b>no</b>",
        "loss became nan",
        "runmanager show",
        version("torch"),
    )
    assert [part for part in further if part not in text] == []
    assert "<strong>half</strong>" in report.read_text()


def test_the_table_has_every_run_the_best_first_and_only_what_varied_and_figures_have_words(page):
    table = rows(page)

    assert len(table) == 12
    assert "clip" not in table[0]
    assert [row["lr"] for row in table[:6]] == ["0.01"] * 6
    assert [row["optimizer"] for row in table[:3]] == ["adam"] * 3
    assert {row["status"].strip("✓✗ ") for row in table} == {"completed", "failed", "diverged"}
    figures = [svg.attrib for svg in page.iter("svg") if svg.get("role")]
    assert len(figures) >= 3
    assert all("aria-label" in svg or "aria-labelledby" in svg for svg in figures)


# Its form


def test_the_page_is_one_file_without_network(report, page):
    assert [element.get("src") for element in page.iter() if element.get("src")] == []
    links = [element.get("href", "") for element in page.iter() if element.get("href")]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    (policy,) = [
        meta.get("content", "") for meta in page.iter("meta") if "Security" in meta.get("http-equiv", "")
    ]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    assert not re.search(r"url\((?!data:)[^)]*//", report.read_text())


def test_ids_are_unique_and_links_lead_to_them(page):
    ids = [element.get("id") for element in page.iter() if element.get("id")]

    assert len(ids) == len(set(ids))
    targets = {link.get("href", "")[1:] for link in page.iter("a") if link.get("href", "").startswith("#")}
    assert {target for target in targets if not target.startswith("run-")} <= set(ids)


def test_text_of_runs_is_never_markup(tmp_path):
    def evil(run):
        if run.number:
            raise ValueError(EVIL)
        return {"loss": 1.0, EVIL: 2.0}

    page = page_of(tmp_path, {"net": [EVIL], "number": [0, 1]}, evil, note=f'{EVIL} <img src="x" onerror="y">')

    source = (tmp_path / "page.html").read_text()
    assert EVIL not in source
    assert EVIL in text_of(page)
    assert not list(page.iter("img"))
    scripts = [script.text or "" for script in page.iter("script")]
    assert not [script for script in scripts if "</" in script.replace("<\\/", "")]


@pytest.mark.parametrize(
    ("grid", "values"),
    [
        ({"lr": [0.1]}, {"loss": 1.0}),
        ({"lr": [0.1, 0.2]}, {}),
        ({"lr": [0.1, 0.2]}, {"test_accuracy": math.inf}),
        ({"lr": [0.1, "high", None, math.nan]}, {"loss": 1e300}),
        ({"lr": [2**70, 1]}, {"loss": 0.5}),
    ],
    ids=["one run", "no metric", "infinite", "mixed", "huge"],
)
def test_few_and_odd_runs_make_a_page_too(tmp_path, grid, values):
    page = page_of(tmp_path, grid, lambda _: values)

    assert text_of(page)


def test_pruned_runs_are_sorted_below_completed_ones_and_are_no_failures(tmp_path):
    rising = Scored(lambda run: {"test_accuracy": run.lr}, epochs=9)

    page = page_of(tmp_path, {"lr": [0.4, 0.3, 0.2]}, rising, prune=SuccessiveHalving("test_accuracy"))

    assert [row["status"].strip("✓– ") for row in rows(page)] == ["completed", "pruned", "pruned"]  # noqa: RUF001
    assert "failed" not in text_of(page)
    overview, *others = [svg.get("id", "") for svg in page.iter("svg")]
    assert (overview, [name for name in others if name.startswith("effect")]) == ("overview", [])
    assert "Pruned runs are drawn at their last epoch." in text_of(by_id(page, "overview"))


def test_the_table_of_two_axes_has_the_mean_of_each_pair_of_values(tmp_path):
    grid = {"lr": [0.1, 0.2, 0.4], "width": [10, 20], "seed": [0, 2]}
    page = page_of(tmp_path, grid, lambda run: {"f1": run.lr * run.width + run.seed}, goal="max:f1")

    table = [[text_of(cell) for cell in row] for row in by_id(page, "together").iter("tr")]
    assert table == [["lr", "width 10", "width 20"], ["0.1", "2", "3"], ["0.2", "3", "5"], ["0.4", "5", "9"]]


def test_an_interrupted_run_says_where_it_resumes(tmp_path):
    epochs = iter(range(5))

    def stop(run):
        if next(epochs) == 4:
            raise KeyboardInterrupt
        return {"f1": run.lr}

    page = page_of(tmp_path, {"lr": [0.1, 0.2]}, Scored(stop, epochs=3), goal="max:f1")

    assert "start the same command again: run 2 resumes after epoch 1." in text_of(by_id(page, "left"))


@pytest.mark.slow
def test_a_search_shows_importances_and_where_the_best_runs_are(tmp_path):
    runs = RunBuilder.sample({"lr": LogUniform(1e-4, 1), "epochs": IntRange(1, 64)}, 40, seed=0)

    page = page_of(tmp_path, runs, lambda run: {"score": -abs(run.epochs - 20)}, goal="max:score")

    assert "importance" in text_of(page)
    headings = [text_of(each) for tag in ("h2", "h3") for each in page.iter(tag)]
    assert {"The best score so far", "score by epochs", "score by lr"} < {*headings}


@pytest.mark.slow
def test_the_legend_of_many_numbers_has_all_their_colors(browser, tmp_path):
    runs = RunBuilder.sample({"lr": LogUniform(1e-4, 1)}, 40, seed=0)
    page_of(tmp_path, runs, lambda run: {"score": run.lr}, goal="max:score", epochs=2)

    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    buttons = page.get_by_role("group", name="Values of lr").last.get_by_role("button")
    texts = buttons.all_inner_texts()
    buttons.last.click()

    ends = [float(text) for text in (texts[0].split()[0], texts[-1].split()[-1])]
    assert ends == pytest.approx([min(run.lr for run in runs), max(run.lr for run in runs)], rel=1e-3)
    assert len(texts) == 6
    assert 0 < page.get_by_role("row").filter(has_text="run").count() < 41
    page.close()


@pytest.mark.slow
def test_a_page_of_200_runs_has_at_most_500_kilobytes(tmp_path):
    grid = {"lr": [0.1, 0.03, 0.01, 0.003], "width": range(10), "seed": range(5)}
    page_of(tmp_path, grid, lambda run: {"loss": run.lr + run.seed / 7, "test_accuracy": run.lr}, epochs=12)

    assert (tmp_path / "page.html").stat().st_size <= 500_000


@pytest.mark.slow(everywhere=True)
def test_a_device_is_not_idle_in_a_pause_in_which_nothing_was_started(tmp_path):
    def scores(run):
        time.sleep(0.1)
        return {"loss": run.lr}

    page_of(tmp_path, {"lr": [0.1]}, scores)
    time.sleep(0.5)
    text = text_of(page_of(tmp_path, {"lr": [0.1, 0.2]}, scores))

    share = re.search(r"cpu was busy for (\d+) % of [\d.]+ s \(2 attempts: 2 completed\)", text)
    assert share
    assert int(share[1]) > 80
    assert re.search(r"took [\d.]+ s, with 1 pause \([\d.]+ s\)\.", text)


def test_the_time_of_the_first_attempt_is_when_it_was_begun(tmp_path):
    def fail(run):
        raise ValueError("too large")

    for wall, scores in ((1.7e9, fail), (1.7e9 + 3600, lambda _: {"loss": 1.0})):
        with mock.patch("time.time", itertools.count(wall, 0.01).__next__):
            page = page_of(tmp_path, {"lr": [0.1]}, scores, retry_failed=True, changed="keep")

    assert "Began 2023-11-14 22:13 UTC, took 1 h, with 1 pause (1 h)" in text_of(page)


def test_another_goal_may_be_given_and_a_notebook_gets_a_link(tmp_path):
    execute(tmp_path, {"lr": [0.1, 0.2]}, lambda run: {"f1": run.lr, "cost": run.lr}, goal="max:f1")

    with contextlib.chdir(tmp_path):
        for goal, said in ((None, "Run 2 (lr=0.2) is best"), ("min:cost", "Run 1 (lr=0.1) is best")):
            path = write_report("e", goal=goal)
            assert said in text_of(parse(tmp_path / "e/report.html"))
    assert 'href="e/report.html"' in path._repr_html_()


def test_two_experiments_are_one_page_with_their_differences(tmp_path):
    for name, lr in (("before", 0.1), ("after", 0.2)):
        execute(tmp_path, {"lr": [lr], "width": [1]}, lambda run: {"f1": run.lr}, name, goal="max:f1")

    text = text_of(parse(write_report([tmp_path / "before", tmp_path / "after"], tmp_path / "page.html")))

    assert "before" in text
    assert "after" in text
    assert re.search(r"lr +0\.1 +0\.2", text)


def test_damage_is_named_and_the_rest_is_shown(tmp_path):
    execute(tmp_path, {"lr": [0.1, 0.2]}, lambda run: {"f1": run.lr}, goal="max:f1")
    flip(next((tmp_path / "e").glob("001*/attempt-1.jsonl")), 0.2)

    text = text_of(parse(write_report(tmp_path / "e", tmp_path / "page.html")))

    assert "attempt-1.jsonl" in text
    assert "0.2" in text


# While a grid runs


def test_report_true_keeps_a_page_up_to_date_while_the_grid_runs(tmp_path):
    pages = []

    def scores(run):
        pages.append(text_of(parse(tmp_path / "e/report.html")))
        return {"test_accuracy": run.lr}

    execute(tmp_path, {"lr": [0.1, 0.2, 0.3]}, scores, report=True)

    ended = text_of(parse(tmp_path / "e/report.html"))
    assert "runs are left" in pages[-1]
    assert "are left" not in ended
    assert "Run 3 (lr=0.3) is best" in ended


# In a browser, by roles and names as a reader has them


@pytest.mark.slow
def test_an_open_page_follows_the_grid(browser, tmp_path):
    def scores(run):
        if run.lr == 0.2:
            reader.goto((tmp_path / "e/report.html").as_uri())
            assert "are left" in reader.locator("body").inner_text()
        return {"test_accuracy": run.lr}

    reader = browser.new_page()
    execute(tmp_path, {"lr": [0.1, 0.2]}, scores, report=True)

    wait_until(reader, "document.body.innerText.includes('is best')")
    reader.close()


def test_a_page_without_a_result_begins_with_failures_that_cannot_turn_its_text(tmp_path):
    def fail(run):
        raise ValueError("\x1b[31m\u202ered")

    page = page_of(tmp_path, {"lr": [0.1, 0.2]}, fail)

    assert "No run has completed" in text_of(page)
    assert "\\u202ered" in text_of(page)

    (content,) = [element.text for element in page.iter() if element.get("id") == "page-data"]
    assert "\\\\u202ered" in content
    assert not {"\\u001b", "\\u202e"} & set(re.findall(r"(?<!\\)\\u\w{4}", content))
