"""What the tests at the border share: a folder of their own, a manager, a browser and a Ray on this machine."""

import os
from unittest import mock

import pytest

from tests.border.experiments import manager_in

pytest.register_assert_rewrite("tests.border.trainers")


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Work in a folder in which nothing is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def manager(tmp_path):
    """The manager of a loop of one's own in the experiment `exp`."""
    return manager_in(tmp_path)


@pytest.fixture
def machine(tmp_path):
    """A machine with two pretended accelerators."""
    from tests.accelerators import Machine

    (tmp_path / "devices").mkdir()
    return Machine(tmp_path / "devices")


@pytest.fixture(scope="module")
def local_ray():
    """Connect this process to a Ray of its own, as a user does."""
    ray = pytest.importorskip("ray")
    with mock.patch.dict(os.environ):  # ray.init() sets PYTHONBREAKPOINT
        ray.init("local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def browser():
    """A browser without a window."""
    from tests.browser import CHROMIUM, OPTIONS, playwright

    if playwright is None or CHROMIUM is None:
        pytest.skip("needs playwright and chromium")
    with playwright.sync_playwright() as driver:
        options = ["--enable-unsafe-swiftshader", *OPTIONS]  # for TensorBoard's pages
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, report):
    """Open the page of a module's report: nothing goes wrong, and nothing but the file is asked for."""
    pages, problems, requests = [], [], set()

    def opened(address="", **options):
        page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}, **options})
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.add(request.url.partition("#")[0]))
        page.goto(report.as_uri() + address)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []
    assert requests == {report.as_uri()}
