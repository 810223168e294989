"""The figures of the page under a pointer, a finger and keys, in a browser without a window."""

import math
import re
from typing import Any

import pytest

from runmanager import write_report
from runmanager.core.outcome import Outcome, Status
from runmanager.tables.where import select
from tests.browser import CHROMIUM, NEEDS_CHROMIUM, OPTIONS, playwright, wait_until
from tests.report.reading import write_runs

pytestmark = NEEDS_CHROMIUM
GRID = [
    {"lr": lr, "optimizer": optimizer, "seed": seed, "clip": clip}
    for lr in (0.1, 0.01, 0.001)
    for optimizer in ("adam", "sgd")
    for seed in range(3)
    for clip in (None, 0.5)
]
OUTCOMES = {
    1: Outcome(Status.FAILED, "ValueError: <b>no</b>", 0),
    4: Outcome(Status.DIVERGED, "loss became nan in epoch 3", 2),
}
EPOCHS = 5
TOP_OF_LEARNING = "Math.abs(document.getElementById('learning').getBoundingClientRect().y)"


def score(run):
    rate = {0.1: 0.2, 0.01: 0.1, 0.001: 0.3}[run["lr"]]
    return 0.9 - rate - 0.05 * (run["optimizer"] == "sgd") + 0.001 * run["seed"] + 0.004 * (run["clip"] is None)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder / "grid", GRID, score, num_epochs=EPOCHS, outcomes=OUTCOMES)
    return write_report(folder / "grid", folder / "report.html")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)


@pytest.fixture
def open_page(browser, report):
    pages: list[Any] = []
    problems: list[str] = []

    def opened(address="", **options):
        page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}, **options})
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(report.as_uri() + address)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []


@pytest.fixture
def page(open_page):
    return open_page()


def figure(page, kind):
    return page.locator(f"svg[data-figure={kind}]").first


def readout(figure):
    return figure.locator("xpath=following::output[1]").inner_text()


def visible(page):
    return {row.split()[1] for row in page.locator("#runs tbody tr").all_inner_texts()}


def lines(figure):
    return set(figure.evaluate("svg => [...svg.querySelectorAll('path.run:not(.gone)')].map(p => p.dataset.r)"))


def test_the_nearest_curve_is_read_wherever_the_pointer_is(page):
    curves = figure(page, "curves")
    curves.scroll_into_view_if_needed()
    box = curves.bounding_box()

    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.75 * box["height"])

    match = re.fullmatch(
        r"run (\d+) · lr (\S+), optimizer (\w+), .* · epoch (\d): test_accuracy (\S+)", readout(curves)
    )
    assert match, readout(curves)
    run, epoch, value = int(match[1]), int(match[4]), float(match[5])
    assert (match[2], match[3]) == (str(GRID[run - 1]["lr"]), GRID[run - 1]["optimizer"])
    expected = score(GRID[run - 1]) * (1 - math.exp(-3 * epoch / EPOCHS)) / (1 - math.exp(-3))
    assert value == pytest.approx(expected, abs=1e-4)
    assert page.locator(f"svg path.run.on[data-r='{run - 1}']").count() == 2  # two curves
    # it stands below the figure
    box, below = curves.bounding_box(), curves.locator("xpath=following::output[1]").bounding_box()
    assert below["y"] >= box["y"] + box["height"] - 1


def test_arrow_keys_read_a_curve_and_enter_opens_its_run(page):
    curves = figure(page, "curves")
    curves.focus()
    page.keyboard.press("ArrowLeft")
    best = readout(curves)
    page.keyboard.press("ArrowLeft")
    earlier = readout(curves)
    page.keyboard.press("ArrowDown")
    below = readout(curves)

    assert f"epoch {EPOCHS}: " in best
    assert f"epoch {EPOCHS - 1}: " in earlier
    assert best.split(" · ")[0] == earlier.split(" · ")[0] != below.split(" · ")[0]
    assert float(below.split()[-1]) <= float(earlier.split()[-1])
    page.keyboard.press("Enter")
    assert page.locator("dialog[open] h2").inner_text() == below.split(" · ")[0]
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_a_finger_reads_a_curve_too(open_page):
    page = open_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    curves = figure(page, "curves")
    curves.scroll_into_view_if_needed()
    box = curves.bounding_box()

    page.touchscreen.tap(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])

    assert "epoch" in readout(curves)
    assert page.locator("dialog[open]").count() == 0


def test_every_figure_of_points_is_read_by_keys(page):
    for kind in ("points", "bars"):
        for svg in page.locator(f"svg[data-figure={kind}]").all():
            svg.focus()
            page.keyboard.press("ArrowDown")
            first = readout(svg)
            page.keyboard.press("ArrowDown")
            assert first.startswith("run ")
            assert readout(svg).startswith("run ")


@pytest.mark.parametrize(
    "where", ["lr<0.1 and status=completed", "clip=None and optimizer=sgd", "status!=completed"]
)
def test_a_condition_chooses_the_same_runs_in_the_table_in_the_figures_and_on_the_command_line(
    page, report, where
):
    from runmanager import load_runs

    chosen = {str(run) for run in select(load_runs(report.parent / "grid"), where.split(" and "))["run"]}

    page.locator("#filter").fill(where)

    assert visible(page) == chosen
    assert page.locator("#shown").inner_text() == f"{len(chosen)} of {len(GRID)} runs"
    assert lines(figure(page, "curves")) <= {str(int(run) - 1) for run in chosen}
    dots = "svg => [...svg.querySelectorAll('path.dots')].map(p => p.getAttribute('d').split('M').length - 1)"
    number = sum(figure(page, "points").evaluate(dots))
    assert number == len(chosen - {str(index + 1) for index in OUTCOMES})


def test_a_mistaken_condition_is_explained_and_changes_nothing(page):
    page.locator("#filter").fill("optimizer=adam")
    before = visible(page)

    page.locator("#filter").fill("optimizer=adam and statu=failed")

    assert page.locator("#shown").inner_text().startswith("these runs have no column 'statu'; they have: ")
    assert page.locator("#filter").get_attribute("aria-invalid") == "true"
    assert visible(page) == before


def test_the_legend_hides_a_value_everywhere(page):
    button = page.locator("#legend button", has_text="0.01").first
    button.click()

    assert button.get_attribute("aria-pressed") == "false"
    assert {GRID[int(run) - 1]["lr"] for run in visible(page)} == {0.1, 0.001}
    assert {GRID[int(run)]["lr"] for run in lines(figure(page, "curves"))} == {0.1, 0.001}


def test_a_value_without_a_curve_is_not_in_the_legend_of_the_curves(browser, tmp_path):
    grid = [{"lr": lr} for lr in (0.1, 0.2, 0.3)]
    outcomes = {0: Outcome(Status.PENDING)}
    path = write_runs(tmp_path / "grid", grid, lambda run: run["lr"], num_epochs=2, outcomes=outcomes)
    page = browser.new_page()
    page.goto(write_report(path, tmp_path / "report.html").as_uri())

    buttons = page.locator("#legend button")
    assert [text.strip() for text in buttons.all_inner_texts()] == ["0.2", "0.3"]
    buttons.last.click()
    assert [button.get_attribute("aria-pressed") for button in buttons.all()] == ["true", "false"]
    assert page.locator("#runs tbody tr").count() == 2
    page.close()


def test_the_same_value_has_the_same_color_in_every_figure(page):
    page.get_by_label("Color by").select_option("optimizer")
    script = """() => [...document.querySelectorAll('svg path.run[data-r]:not(.lost)')].map(
      (path) => [path.dataset.r, path.getAttribute('class').match(/[co]\\d/)[0]])"""

    colors: dict[str, set[str]] = {"adam": set(), "sgd": set()}
    for run, color in page.evaluate(script):
        colors[str(GRID[int(run)]["optimizer"])].add(color)

    assert colors == {"adam": {"c0"}, "sgd": {"c1"}}


def ticks(svg):
    """The epochs on the axis of a figure of curves."""
    return [int(text) for text in svg.locator("text.tick[text-anchor=middle]").all_text_contents()]


def chosen(page):
    """What a reader can choose, as the page has it."""
    return {
        "runs": visible(page),
        "legend": [each.get_attribute("aria-pressed") for each in page.locator("#legend button").all()],
        "filter": page.locator("#filter").input_value(),
        "color": page.locator("#colors").input_value(),
        "lines": figure(page, "curves").locator("path.run:not(.gone)").first.get_attribute("d"),
        "sort": page.locator("#runs th[aria-sort]").all_inner_texts(),
        "columns": page.locator("#columns").get_attribute("aria-pressed"),
        "view": page.locator("dialog[open] h2").all_inner_texts(),
    }


def test_everything_that_is_chosen_is_in_the_address(page, open_page):
    page.get_by_label("Color by").select_option("optimizer")
    page.locator("#legend button", has_text="sgd").click()
    page.locator("#filter").fill("clip=None and seed<2 and lr<0.1")
    page.get_by_role("button", name="All columns").click()
    page.locator("#runs thead button", has_text="seed").click()
    page.locator("#runs tbody a").first.click()
    before = chosen(page)
    assert 0 < len(before["runs"]) < 6

    page.wait_for_url(re.compile(r"#run-\d+\?"))
    other = open_page(page.url.removeprefix(page.url.split("#")[0]))
    page.reload()

    assert chosen(other) == before
    assert chosen(page) == before
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Show all runs").click()
    assert len(visible(page)) == len(GRID)


def test_a_link_of_the_page_keeps_what_is_chosen(page, open_page):
    page.locator("#filter").fill("optimizer=adam")
    page.get_by_role("link", name="Learning").click()
    wait_until(page, f"{TOP_OF_LEARNING} < 40")  # it scrolls smoothly

    address = page.evaluate("location.hash")
    page.reload()

    assert address == "#learning?filter=optimizer%3Dadam"
    for each in (page, open_page(address)):
        assert {GRID[int(run) - 1]["optimizer"] for run in visible(each)} == {"adam"}
        wait_until(each, f"{TOP_OF_LEARNING} < 40")


@pytest.mark.parametrize("address", ["#run-7?hide=%&with=run-7&sort=no&%E0", "#?&&="])
def test_an_address_that_is_written_by_hand_does_no_harm(open_page, address):
    page = open_page(address)

    assert len(visible(page)) == len(GRID)
    assert ticks(figure(page, "curves"))[-1] == EPOCHS


def test_two_runs_are_set_side_by_side(open_page):
    page = open_page("#run-1")
    page.get_by_role("combobox", name="Compare with").select_option("8")

    dialog = page.get_by_role("dialog", name="run 1 and run 9")
    differing = [name for name in GRID[0] if GRID[0][name] != GRID[8][name]]
    rows = dialog.get_by_role("region", name="Settings that differ").locator("tbody tr")
    assert [row.split()[0] for row in rows.all_inner_texts()] == differing
    results = dialog.get_by_role("region", name="Results").locator("tbody tr").all_inner_texts()
    (line,) = [row.split("\t") for row in results if row.startswith("test_accuracy")]
    first, second = score(GRID[0]), score(GRID[8])
    assert [float(text) for text in line[1:3]] == pytest.approx([first, second], abs=1e-4)
    assert line[3] == f"\N{MINUS SIGN}{first - second:.4g}, worse"
    names = [svg.get_attribute("aria-label") for svg in dialog.get_by_role("img").all()]
    assert names[0].startswith("test_accuracy: run 1 from ")
    assert "; run 9 from " in names[0]
    assert {name.split(":")[0] for name in names} == {"test_accuracy", "accuracy", "test_loss", "loss"}
    assert re.search(r"runmanager diff \S+/grid/1 \S+/grid/9", dialog.inner_text())
    assert page.url.endswith("#run-1?with=run-9")
    page.reload()
    page.get_by_role("dialog", name="run 1 and run 9").wait_for()
    dialog.locator("p a").nth(1).click()
    page.get_by_role("dialog", name="run 9", exact=True).wait_for()
    page.get_by_role("combobox", name="Compare with").select_option("0")
    page.get_by_role("dialog", name="run 9 and run 1").wait_for()
    assert "#run-9?with=run-1" in page.url


def test_a_run_is_opened_by_its_address_with_its_neighbours(open_page):
    page = open_page("#run-2")
    dialog = page.get_by_role("dialog", name="run 2")

    words = dialog.inner_text()
    assert "ValueError: <b>no</b>" in words
    assert "grid.py" in words
    assert "runmanager show" in words
    links = (
        dialog.get_by_role("region", name="Runs that differ in one hyperparameter")
        .locator("a")
        .all_inner_texts()
    )
    differing = [
        f"run {number}"
        for number, run in enumerate(GRID, 1)
        if sum(run[name] != GRID[1][name] for name in run) == 1
    ]
    assert sorted(links) == sorted(differing)
    dialog.get_by_role("region", name="Runs that differ in one hyperparameter").locator("a").first.click()
    page.get_by_role("dialog", name=links[0]).wait_for()
    assert page.url.endswith(links[0].replace(" ", "-"))


def test_a_run_is_opened_from_the_table_with_its_curves(page):
    page.locator("#runs tbody a").first.click()

    dialog = page.get_by_role("dialog")
    dialog.get_by_role("img").first.wait_for()
    names = [svg.get_attribute("aria-label") for svg in dialog.get_by_role("img").all()]
    assert [name.split(":")[0] for name in names] == ["accuracy", "loss"]
    assert "test_accuracy from" in names[0]


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_the_essential_columns_fit_and_all_are_one_click_away(open_page, width):
    page = open_page(viewport={"width": width, "height": 900})
    widths = """(() => {
      const table = document.getElementById('runs');
      return table.offsetWidth - table.parentNode.clientWidth;
    })()"""

    assert page.evaluate(widths) <= 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    number = page.locator("#runs thead th:visible").count()
    page.get_by_role("button", name="All columns").click()
    assert page.locator("#runs thead th:visible").count() > number


def test_figures_and_tools_have_roles_and_names(page):
    tree = page.locator("body").aria_snapshot()

    for line in (
        '- searchbox "Show runs with"', '- combobox "Color by"', '- group "Values of lr"',
        '- application "test_accuracy by epoch"', '- application "Runs by device and time"', '- link "run 2"',
    ):  # fmt: skip
        assert line in tree, line
