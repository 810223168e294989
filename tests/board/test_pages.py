"""TensorBoard's pages as a person sees them, in a browser without a window."""

import re
from typing import Any

import pytest

from runmanager import run_grid
from runmanager.tensorboard.hparams import OF_GOAL
from runmanager.tensorboard.server import page_of, start
from tests.board.reading import LOADER, make_network, train
from tests.browser import CHROMIUM, NEEDS_CHROMIUM, playwright
from tests.browser import OPTIONS as FOR_ROOT

pytestmark = NEEDS_CHROMIUM
OPTIONS = ["--enable-unsafe-swiftshader", *FOR_ROOT]
GROUPS = ["Pinned", "Goal", "accuracy", "loss", "time", "train", "visuals", "weights", "weights:grad"]
FIRST: dict[str, list[Any]] = {"lr": [0.1, 0.2, 0.3], "batch_size": [4, 8], "device": ["cpu"]}
SECOND: dict[str, list[Any]] = {"momentum": [0.0, 0.9], "schedule": [None, "cosine"], "device": ["cpu"]}
SMALL: dict[str, list[Any]] = {"lr": [0.1, 0.2], "width": [4, 8, 16], "device": ["cpu"]}
LOAD_MS = 30_000
SIDEBAR = 300  # pixels


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Make two experiments with different axes, of 6 and 5 runs, of which the second has grown by an axis."""
    folder = tmp_path_factory.mktemp("runs")

    def train_two_epochs(run, manager):
        train(manager, run, num_epochs=2)

    for name, grid in (("first", FIRST), ("second", SECOND), ("second", {"dropout": [0.5]})):
        run_grid(grid, train_two_epochs, experiment=name, root=folder, display=False, executor="inline")
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Serve two experiments of one grid that evaluate under other names, one of whose runs fail and diverge."""
    folder = tmp_path_factory.mktemp("mixed")

    def trainer(name):
        def train_two_epochs(run, manager):
            with manager.run(run, make_network(), LOADER):
                for epoch in manager.epochs(2):
                    for images, _ in manager.batches():
                        is_nan = name == "reward" and run.width == 8 and epoch == 2
                        manager.track_loss(float("nan") if is_nan else 0.5, images)
                    if name == "reward" and run.width == 16 and epoch == 2:
                        raise RuntimeError("fails in its second epoch")
                    manager.track(**{name: run.lr * epoch})

        return train_two_epochs

    for name in ("reward", "validation_accuracy"):
        options: dict[str, Any] = {"goal": f"max:{name}", "on_error": "continue", "executor": "inline"}
        run_grid(SMALL, trainer(name), experiment=name, root=folder, display=False, **options)
    return folder, start(folder)


@pytest.fixture(scope="module")
def server(root):
    return start(root)


@pytest.fixture(scope="module")
def first(root):
    return start(page_of(root, "first").logdir)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        playwright.expect.set_options(timeout=LOAD_MS)
        yield driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)


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


def test_the_link_to_an_experiment_shows_it_alone_pinned_and_colored(page, first, root):
    page.goto(page_of(root, "first").link(first))

    expect(page.locator(".group-title")).to_have_text(GROUPS)
    pinned = page.locator("metrics-pinned-view scalar-card")
    expect(pinned).to_have_count(3)
    expect(pinned.locator(".tag")).to_have_text(["accuracy/test", "loss/test", "time/epoch_s"])
    rows = pinned.first.locator("tb-data-table-content-row")
    expect(rows).to_have_count(6)
    runs = [text for row in rows.all_inner_texts() if (text := re.search(r"\d+-lr=([\d.]+)", row))]
    circles = pinned.first.locator(".row-circle span")
    expect(circles).to_have_count(6)
    colors = circles.evaluate_all("spans => spans.map(span => getComputedStyle(span).backgroundColor)")
    assert len(set(zip((run[1] for run in runs), colors, strict=True))) == len(set(colors)) == 3
    assert page.get_by_text("momentum=").count() == 0


def test_the_colors_of_runs_are_inside_the_sidebar(page, first, root):
    page.goto(page_of(root, "first").link(first))

    dots = page.locator("runs-data-table .run-color-swatch")
    expect(dots).to_have_count(6)
    ends = dots.evaluate_all("dots => dots.map(dot => dot.getBoundingClientRect().right)")
    assert max(ends) < SIDEBAR


def test_all_groups_of_tags_stand_in_order_without_a_link_too(page, server):
    page.goto(f"{server}#timeseries")

    expect(page.locator(".group-title")).to_have_text(GROUPS)
    expect(page.get_by_text("second/005")).not_to_have_count(0)


def test_custom_scalars_of_an_experiment_show_train_and_test_in_one_chart(page, first):
    page.goto(f"{first}#custom_scalars")

    expect(page.locator("tf-custom-scalar-multi-line-chart-card")).to_have_count(10)


@pytest.mark.parametrize(("experiment", "num_runs"), [("first", 6), ("second", 5)])
def test_parallel_coordinates_of_an_experiment_have_a_line_for_every_run(page, root, experiment, num_runs):
    server = start(page_of(root, experiment).logdir)
    page.goto(f"{server}#hparams")
    page.get_by_text("PARALLEL COORDINATES VIEW").click()

    expect(page.locator("g.foreground path")).to_have_count(num_runs)
    axes = page.locator(".axis-title").all_text_contents()
    assert axes[-5:] == ["Goal/best max:test_accuracy", *sorted(OF_GOAL)[1:]]


def test_the_first_metrics_of_the_hparams_table_are_those_of_the_goal(page, mixed):
    _, server = mixed
    page.goto(f"{server}#hparams")

    expect(page.get_by_text("reward/001")).to_be_visible()
    names = page.get_by_text(re.compile(r"^\s*(Goal|accuracy|loss|time|train)/[\w: ]+\s*$")).all_text_contents()
    metrics = ("reward", "validation_accuracy")
    assert [name.strip() for name in names][:5] == [
        *(f"Goal/best max:{metric}" for metric in metrics), *sorted(OF_GOAL)[1:4],
    ]  # fmt: skip


def test_the_pins_of_experiments_with_other_metrics_have_a_card_with_all_runs(page, mixed):
    folder, server = mixed
    page.goto(page_of(folder).link(server))

    pinned = page.locator("metrics-pinned-view scalar-card")
    expect(pinned.locator(".tag")).to_have_text(["Goal/last", "loss/train", "time/epoch_s"])
    for number in range(3):
        expect(pinned.nth(number).locator("tb-data-table-content-row")).to_have_count(2 * 6)


def test_no_page_smooths_the_curves(page, first, root):
    page.goto(page_of(root, "first").link(first))
    expect(page.locator(".group-title")).to_have_text(GROUPS)

    for name, inputs in (("scalars", 1), ("custom_scalars", 2)):
        page.locator(f".plugin-name[data-plugin-id={name}]").click()
        smoothing = page.locator("tf-smoothing-input")
        expect(smoothing).to_have_count(inputs)
        weights = smoothing.evaluate_all("all => all.map(one => one.weight)")
        assert weights == inputs * [0]
