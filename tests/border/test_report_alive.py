"""The page of `write_report` under a pointer, a finger and keys, in a browser without a window."""

import math
import re

import pytest

from runmanager import RunBuilder, write_report
from tests.border.experiments import execute
from tests.browser import NEEDS_CHROMIUM

pytestmark = NEEDS_CHROMIUM
AXES = {"lr": (0.1, 0.01, 0.001), "optimizer": ("adam", "sgd"), "seed": range(3), "clip": (None, 0.5)}
GRID = [run._asdict() for run in RunBuilder.get_runs(AXES)]
EPOCHS = 5


def score(run):
    rate = {0.1: 0.2, 0.01: 0.1, 0.001: 0.3}[run["lr"]]
    return 0.9 - rate - 0.05 * (run["optimizer"] == "sgd") + 0.001 * run["seed"] + 0.004 * (run["clip"] is None)


def scores(run):
    """Let run 2 fail, and run 5 diverge."""
    params = run._asdict()
    if params == GRID[1]:
        raise ValueError("<b>no</b>" + 2000 * "x")
    value = score(params)
    return {
        "loss": math.nan if params == GRID[4] else 1 - value,
        "test_accuracy": value,
        "test_loss": 2 - value,
    }


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    execute(folder, AXES, scores, epochs=EPOCHS)
    return write_report(folder / "e", folder / "report.html")


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


# Reading


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
    assert value == pytest.approx(score(GRID[run - 1]) * epoch / EPOCHS, abs=1e-4)
    assert page.locator(f"svg path.run.on[data-r='{run - 1}']").count() == 2  # two curves
    # it stands below the figure
    box, below = curves.bounding_box(), curves.locator("xpath=following::output[1]").bounding_box()
    assert below["y"] >= box["y"] + box["height"] - 1


def test_arrow_keys_read_every_figure_and_enter_opens_its_run(page):
    curves = figure(page, "curves")
    curves.focus()
    read = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
        read.append(readout(curves))
    best, earlier, below = read

    assert f"epoch {EPOCHS}: " in best
    assert f"epoch {EPOCHS - 1}: " in earlier
    assert best.split(" · ")[0] == earlier.split(" · ")[0] != below.split(" · ")[0]
    assert float(below.split()[-1]) <= float(earlier.split()[-1])
    page.keyboard.press("Enter")
    assert page.locator("dialog[open] h2").inner_text() == below.split(" · ")[0]
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    for kind in ("points", "bars"):
        for svg in page.locator(f"svg[data-figure={kind}]").all():
            svg.focus()
            for _ in range(2):
                page.keyboard.press("ArrowDown")
                assert readout(svg).startswith("run ")


def test_a_finger_reads_a_curve_on_a_phone_too_on_which_nothing_is_wider_than_the_screen(open_page):
    page = open_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    curves = figure(page, "curves")
    curves.scroll_into_view_if_needed()
    box = curves.bounding_box()

    page.touchscreen.tap(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])

    assert "epoch" in readout(curves)
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # a long message is broken into lines
    cell = page.locator("#settings td", has_text="may be chance").or_(page.locator("#settings td")).first
    assert cell.bounding_box()["x"] < 390


# Choosing


@pytest.mark.parametrize(
    ("where", "is_chosen"),
    [
        ("lr<0.1 and status=completed", lambda run: run["lr"] < 0.1),
        ("clip=None and optimizer=sgd", lambda run: run["clip"] is None and run["optimizer"] == "sgd"),
        ("status!=completed", lambda run: run in (GRID[1], GRID[4])),
        ("adam 0.01", lambda run: run["optimizer"] == "adam" and run["lr"] == 0.01),
    ],
)
def test_a_condition_chooses_the_same_runs_in_the_table_and_in_the_figures(page, where, is_chosen):
    expected = {str(number) for number, run in enumerate(GRID, 1) if is_chosen(run)}

    page.locator("#filter").fill(where)

    assert visible(page) >= expected if where == "adam 0.01" else visible(page) == expected
    number = len(visible(page))
    assert page.locator("#shown").inner_text() == f"{number} of {len(GRID)} runs"
    assert lines(figure(page, "curves")) <= {str(int(run) - 1) for run in visible(page)}
    dots = "svg => [...svg.querySelectorAll('path.dots')].map(p => p.getAttribute('d').split('M').length - 1)"
    assert sum(figure(page, "points").evaluate(dots)) == len(visible(page) - {"2", "5"})


def test_a_mistaken_condition_is_explained_and_changes_nothing(page):
    page.locator("#filter").fill("optimizer=adam")
    before = visible(page)

    page.locator("#filter").fill("optimizer=adam and statu=failed")

    assert page.locator("#shown").inner_text().startswith("these runs have no column 'statu'; they have: ")
    assert page.locator("#filter").get_attribute("aria-invalid") == "true"
    assert visible(page) == before


def test_headings_sort_the_table_and_say_so(page):
    texts = "[...document.querySelectorAll('#runs tbody tr')].map(row => row.cells[1].textContent)"
    button = page.locator("#runs thead button", has_text="test_accuracy")
    button.click()
    best_first = page.evaluate(texts)
    button.click()
    worst_first = page.evaluate(texts)

    heading = page.locator("#runs thead th", has_text="test_accuracy")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert {*best_first[-2:]} == {*worst_first[-2:]}  # the runs that are lost are last either way
    assert worst_first[:-2] == sorted(best_first[:-2])


@pytest.mark.parametrize("width", [1440, 390])
def test_the_essential_columns_fit_and_all_are_one_click_away(open_page, width):
    page = open_page(viewport={"width": width, "height": 900})
    widths = """(() => {
      const table = document.getElementById('runs');
      return table.offsetWidth - table.parentNode.clientWidth;
    })()"""

    assert page.evaluate(widths) <= 0
    number = page.locator("#runs thead th:visible").count()
    page.get_by_role("button", name="All columns").click()
    assert page.locator("#runs thead th:visible").count() > number


# The address


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
    assert re.search(r"runmanager diff \S+/e/1 \S+/e/9", dialog.inner_text())
    assert page.url.endswith("#run-1?with=run-9")
    page.reload()
    page.get_by_role("dialog", name="run 1 and run 9").wait_for()
    dialog.locator("p a").nth(1).click()
    page.get_by_role("dialog", name="run 9", exact=True).wait_for()


def test_a_run_is_opened_by_its_address_with_its_neighbours(open_page):
    page = open_page("#run-2")
    dialog = page.get_by_role("dialog", name="run 2")

    assert "ValueError: <b>no</b>" in dialog.inner_text()
    near = dialog.get_by_role("region", name="Runs that differ in one hyperparameter").locator("a")
    links = near.all_inner_texts()
    numbers = [n for n, run in enumerate(GRID, 1) if sum(run[name] != GRID[1][name] for name in run) == 1]
    assert sorted(links) == sorted(f"run {number}" for number in numbers)
    near.first.click()
    page.get_by_role("dialog", name=links[0]).wait_for()
    assert page.url.endswith(links[0].replace(" ", "-"))


# Paper, and large pages


def test_it_prints_without_what_only_a_screen_can_do(browser, report):
    page = browser.new_page(viewport={"width": 720, "height": 1000})  # A4, without its margins
    page.goto(report.as_uri())
    page.emulate_media(media="print")

    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    for name in ("nav", ".reading", "#filter"):
        assert page.locator(name).first.is_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()
