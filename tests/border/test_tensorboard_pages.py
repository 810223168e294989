"""TensorBoard's pages as a person sees them, in a browser without a window."""

import contextlib
import io
import re

import pytest

from runmanager import open_tensorboard, run_grid
from tests.border.events import LOADER, make_network, train
from tests.border.experiments import QUIET
from tests.browser import CHROMIUM, NEEDS_CHROMIUM, playwright
from tests.browser import OPTIONS as FOR_ROOT

pytestmark = NEEDS_CHROMIUM
GROUPS = ["Pinned", "Goal", "accuracy", "loss", "time", "train", "visuals", "weights", "weights:grad"]
OF_GOAL = ["Goal/best_after_s", "Goal/best_epoch", "Goal/epoch_s", "Goal/last"]
LOAD_MS = 30_000
SIDEBAR = 300  # pixels


def link_to(root, experiment=None):
    """Start TensorBoard; return the link to its page."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        open_tensorboard(root, experiment)
    return printed.getvalue().removeprefix("TensorBoard: ").strip()


def page_of(link, name):
    return f"{link.partition('?')[0]}#{name}"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two experiments with different axes, of 6 and 5 runs, of which the second has grown by an axis."""
    root = tmp_path_factory.mktemp("runs")
    for name, grid in (
        ("first", {"lr": [0.1, 0.2, 0.3], "batch_size": [4, 8], "device": ["cpu"]}),
        ("second", {"momentum": [0.0, 0.9], "schedule": [None, "cosine"], "device": ["cpu"]}),
        ("second", {"dropout": [0.5]}),
    ):
        options = {**QUIET, "tensorboard": True}
        run_grid(grid, lambda run, manager: train(manager, run, 2), experiment=name, root=root, **options)
    return root


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Two experiments of one grid that track other metrics, one of whose runs fail and diverge."""
    root = tmp_path_factory.mktemp("mixed")

    def score(run, manager):
        with manager.run(run, make_network(), LOADER):
            experiment = manager.folder.parent.name
            for epoch in manager.epochs(2):
                is_last = experiment == "reward" and epoch == 2
                for images, _ in manager.batches():
                    manager.track_loss(float("nan") if is_last and run.width == 8 else 0.5, images)
                if is_last and run.width == 16:
                    raise RuntimeError("fails in its second epoch")
                manager.track({experiment: run.lr * epoch})

    for name in ("reward", "validation_accuracy"):
        options = {**QUIET, "tensorboard": True, "goal": f"max:{name}", "on_error": "continue"}
        run_grid({"lr": [0.1, 0.2], "width": [4, 8, 16]}, score, experiment=name, root=root, **options)
    return link_to(root)


@pytest.fixture(scope="module")
def link(root):
    return link_to(root)


@pytest.fixture(scope="module")
def first(root):
    return link_to(root, "first")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        playwright.expect.set_options(timeout=LOAD_MS)
        options = ["--enable-unsafe-swiftshader", *FOR_ROOT]
        yield driver.chromium.launch(executable_path=CHROMIUM, args=options)


@pytest.fixture
def page(browser):
    """A page in which nothing goes wrong."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(LOAD_MS)
    problems: list[str] = []
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    shown = page.inner_text("body")
    page.close()
    assert problems == []
    assert "exceeds 500" not in shown


def expect(locator):
    return playwright.expect(locator)


def test_the_link_to_an_experiment_shows_it_alone_pinned_colored_and_unsmoothed(page, first):
    page.goto(first)

    expect(page.locator(".group-title")).to_have_text(GROUPS)
    pinned = page.locator("metrics-pinned-view scalar-card")
    expect(pinned.locator(".tag")).to_have_text(["accuracy/test", "loss/test", "time/epoch_s"])
    rows = pinned.first.locator("tb-data-table-content-row")
    expect(rows).to_have_count(6)
    runs = [text for row in rows.all_inner_texts() if (text := re.search(r"\d+-lr=([\d.]+)", row))]
    circles = pinned.first.locator(".row-circle span")
    expect(circles).to_have_count(6)
    colors = circles.evaluate_all("spans => spans.map(span => getComputedStyle(span).backgroundColor)")
    assert len(set(zip((run[1] for run in runs), colors, strict=True))) == len(set(colors)) == 3
    assert page.get_by_text("momentum=").count() == 0
    dots = page.locator("runs-data-table .run-color-swatch")
    expect(dots).to_have_count(6)
    ends = dots.evaluate_all("dots => dots.map(dot => dot.getBoundingClientRect().right)")
    assert max(ends) < SIDEBAR

    for name, inputs in (("scalars", 1), ("custom_scalars", 2)):
        page.locator(f".plugin-name[data-plugin-id={name}]").click()
        smoothing = page.locator("tf-smoothing-input")
        expect(smoothing).to_have_count(inputs)
        assert smoothing.evaluate_all("all => all.map(one => one.weight)") == inputs * [0]
    expect(page.locator("tf-custom-scalar-multi-line-chart-card")).to_have_count(10)


def test_all_groups_of_tags_stand_in_order_without_a_link_too(page, link):
    page.goto(page_of(link, "timeseries"))

    expect(page.locator(".group-title")).to_have_text(GROUPS)
    expect(page.get_by_text("second/005")).not_to_have_count(0)


@pytest.mark.parametrize(("experiment", "num_runs"), [("first", 6), ("second", 5)])
def test_parallel_coordinates_of_an_experiment_have_a_line_for_every_run(page, root, experiment, num_runs):
    page.goto(page_of(link_to(root, experiment), "hparams"))
    page.get_by_text("PARALLEL COORDINATES VIEW").click()

    expect(page.locator("g.foreground path")).to_have_count(num_runs)
    axes = page.locator(".axis-title").all_text_contents()
    assert axes[-5:] == ["Goal/best max:test_accuracy", *OF_GOAL]


def test_experiments_with_other_metrics_share_pins_and_the_metrics_of_the_goal_come_first(page, mixed):
    page.goto(mixed)
    pinned = page.locator("metrics-pinned-view scalar-card")
    expect(pinned.locator(".tag")).to_have_text(["Goal/last", "loss/train", "time/epoch_s"])
    for number in range(3):
        expect(pinned.nth(number).locator("tb-data-table-content-row")).to_have_count(2 * 6)

    page.goto("about:blank")
    page.goto(page_of(mixed, "hparams"))
    expect(page.get_by_text("reward/001")).to_be_visible()
    names = page.get_by_text(re.compile(r"^\s*(Goal|accuracy|loss|time|train)/[\w: ]+\s*$")).all_text_contents()
    goals = [f"Goal/best max:{metric}" for metric in ("reward", "validation_accuracy")]
    assert [name.strip() for name in names][:5] == [*goals, *OF_GOAL[:3]]
