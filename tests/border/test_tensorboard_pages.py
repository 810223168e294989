"""TensorBoard's pages as a person sees them, in a browser without a window."""

import contextlib
import io
import re

import pytest

from runmanager import open_tensorboard
from tests.border.events import train
from tests.border.experiments import execute
from tests.browser import NEEDS_CHROMIUM, playwright

pytestmark = NEEDS_CHROMIUM
GROUPS = ["Pinned", "Goal", "Run", "accuracy", "loss", "time", "train", "visuals", "weights", "weights:grad"]
LOAD_MS = 30_000
SIDEBAR = 300  # pixels


def link_to(root, experiment=None):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        open_tensorboard(root, experiment)
    return printed.getvalue().removeprefix("TensorBoard: ").strip()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two experiments with different axes, of 6 and 5 runs, of which the second has grown by an axis."""
    root = tmp_path_factory.mktemp("runs")
    for name, grid in (
        ("first", {"lr": [0.1, 0.2, 0.3], "batch_size": [4, 8], "device": ["cpu"]}),
        ("second", {"momentum": [0.0, 0.9], "schedule": [None, "cosine"], "device": ["cpu"]}),
        ("second", {"dropout": [0.5]}),
    ):
        execute(root, grid, lambda run, manager: train(manager, run, 2), name, tensorboard=True)
    return root


@pytest.fixture(scope="module")
def first(root):
    return link_to(root, "first")


@pytest.fixture
def page(browser):
    """A page in which nothing goes wrong."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(LOAD_MS)
    playwright.expect.set_options(timeout=LOAD_MS)
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
    expect(page.locator("tf-custom-scalar-multi-line-chart-card")).to_have_count(9)
