"""The page as a person sees it, in a browser without a window."""

import time

import pytest

from runmanager import RunManager, write_report
from runmanager.core.outcome import Outcome, Status
from tests.browser import CHROMIUM, NEEDS_CHROMIUM, OPTIONS, playwright
from tests.report.reading import write_runs

pytestmark = NEEDS_CHROMIUM
MOST_S = 2.0
GRID = [
    {"lr": lr / 100, "width": width, "seed": seed, "device": device}
    for lr in range(1, 11)
    for width in (16, 32, 64, 128, 256)
    for seed in range(10)
    for device in ("cpu", "cuda")
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page of 1,000 runs of 20 epochs."""
    folder = tmp_path_factory.mktemp("runs")
    outcomes = {7: Outcome(Status.FAILED, "ValueError: <b>no</b>", 0)}

    def score(run):
        return 0.8 - abs(run["lr"] - 0.05) + 0.01 * (run["width"] == 64) + 0.001 * run["seed"]

    write_runs(folder / "grid", GRID, score, num_epochs=20, outcomes=outcomes)
    return write_report(folder / "grid", folder / "report.html")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def page(browser, report, request):
    """The page, opened: nothing goes wrong, and nothing but the file is asked for."""
    width, height = request.param
    page = browser.new_page(viewport={"width": width, "height": height})
    problems: list[str] = []
    requests: list[str] = []
    page.on("console", lambda said: problems.append(said.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    yield page
    page.close()
    assert problems == []
    assert requests == [report.as_uri()]


def test_a_thousand_runs_are_open_within_two_seconds(browser, report):
    times: list[float] = []
    while len(times) < 20 and min(times, default=MOST_S) >= MOST_S:  # another process may be in the way
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        before = time.perf_counter()
        page.goto(report.as_uri())
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        times.append(time.perf_counter() - before)
        page.close()

    assert min(times) < MOST_S


def test_nothing_is_wider_than_the_screen(page):
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_long_value_is_broken_into_lines(browser, tmp_path):
    grid = [{"note": letter * 2000, "lr": lr} for letter in "ab" for lr in (0.1, 0.2)]
    outcomes = {0: Outcome(Status.FAILED, "x" * 2000, 0)}
    write_runs(tmp_path / "grid", grid, lambda run: run["lr"], outcomes=outcomes)
    page = browser.new_page(viewport={"width": 390, "height": 844})

    page.goto(write_report(tmp_path / "grid", tmp_path / "report.html").as_uri())

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_a_phone_shows_whether_a_lead_may_be_chance(browser, tmp_path):
    grid = [{"name": name, "seed": seed} for name in "AB" for seed in range(3)]
    noise = [0.031, 0.012, 0.023, 0.014, 0.045, 0.036]
    write_runs(tmp_path / "grid", grid, lambda run: 0.7 + noise[3 * (run["name"] == "B") + run["seed"]])
    page = browser.new_page(viewport={"width": 390, "height": 844})

    page.goto(write_report(tmp_path / "grid", tmp_path / "report.html").as_uri())

    box = page.locator("#settings td", has_text="may be chance").bounding_box()
    assert box["x"] + box["width"] <= 390
    page.close()


def test_the_curves_of_a_single_metric_are_as_large_as_those_of_two(browser, tmp_path):
    manager = RunManager("grid", tmp_path, tensorboard=False, display=False)
    for lr in (0.1, 0.2):
        with manager.run({"lr": lr}):
            for epoch in manager.epochs(3):
                manager.track_loss(lr / epoch, 1)
    page = browser.new_page(viewport={"width": 1280, "height": 900})

    page.goto(write_report(tmp_path / "grid", tmp_path / "report.html").as_uri())

    (curves,) = page.locator("#learning svg").all()
    assert 420 < curves.bounding_box()["width"] < 640
    page.close()


def test_headings_sort_the_table_and_say_so(page):
    scores = "[...document.querySelectorAll('#runs tbody tr')].map(row => row.cells[1].textContent)"
    button = page.locator("#runs thead button", has_text="test_accuracy")
    button.click()
    best_first = page.evaluate(scores)
    button.click()
    worst_first = page.evaluate(scores)

    heading = page.locator("#runs thead th", has_text="test_accuracy")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert best_first[-1] == worst_first[-1] == ""  # the run that failed is last either way
    assert worst_first[:-1] == sorted(best_first[:-1])


def test_the_table_can_be_searched(page):
    page.locator("#filter").fill("CUDA 128")

    rows = page.locator("#runs tbody tr:visible").all_text_contents()  # on a phone, some are hidden
    assert all("cuda" in row and "128" in row for row in rows)
    assert len(rows) == 101  # those of that width, and run 128
    assert page.locator("#shown").inner_text() == "101 of 1000 runs"


def test_the_same_run_is_lit_in_the_table_and_in_the_figures(page):
    row = page.locator("#runs tbody tr").first
    row.hover()

    run = row.get_attribute("data-r")
    lit = page.locator(f"svg path.run.on[data-r='{run}']")
    assert lit.count() == page.locator(f"svg path.run[data-r='{run}']").count() == 2
    assert page.locator("svg path.run.on").count() == 2


def test_it_prints_without_what_only_a_screen_can_do(browser, report):
    page = browser.new_page(viewport={"width": 720, "height": 1000})  # A4, without its margins
    page.goto(report.as_uri())
    page.emulate_media(media="print")

    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.locator("#runs tbody tr:visible").count() == 40
    assert page.locator("nav").is_hidden()
    assert page.locator(".reading").first.is_hidden()
    assert page.locator("#filter").is_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()
