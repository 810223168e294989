"""A page that loads itself again while it is read, from the file system."""

from runmanager.outcome import Outcome, Status
from runmanager.report.render import write_page
from tests.browser import CHROMIUM, NEEDS_CHROMIUM, OPTIONS, playwright, wait_until
from tests.report.reading import write_runs

pytestmark = NEEDS_CHROMIUM
GRID = [{"lr": lr / 100, "width": width} for lr in range(1, 11) for width in (16, 32, 64)]


def test_an_open_page_follows_and_keeps_what_its_reader_did(tmp_path):
    failed = {4: Outcome(Status.FAILED, "ValueError: no", 0)}
    write_runs(tmp_path / "grid", GRID, lambda run: run["lr"], outcomes=failed)
    target = tmp_path / "report.html"
    write_page(tmp_path / "grid", target, seconds=1.0)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        page = browser.new_page(reduced_motion="reduce")  # else a focus or a key is still scrolling below
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(target.as_uri())
        page.fill("#filter", "run 1")
        page.click("#log-1 summary")
        page.get_by_role("button", name="All columns").focus()
        page.evaluate("window.scrollTo(0, 400)")
        page.evaluate("window.before = true")

        wait_until(page, "!window.before && document.readyState === 'complete'")

        assert page.input_value("#filter") == "run 1"
        assert page.evaluate("document.getElementById('log-1').open")
        assert page.evaluate("window.scrollY") == 400
        assert page.evaluate("document.activeElement.id") == "columns"
        rows = page.locator("#runs tbody tr").all_text_contents()
        assert 0 < len(rows) < len(GRID)
        assert all("1" in row for row in rows)
        assert page.evaluate("window.history.state") is None
        write_page(tmp_path / "grid", target)  # the last page
        page.evaluate("window.before = true")
        wait_until(page, "!window.before && document.readyState === 'complete'")
        assert page.evaluate("document.body.dataset.seconds") is None
        page.evaluate("window.before = true")
        page.wait_for_timeout(2500)
        assert page.evaluate("window.before")
        assert problems == []
