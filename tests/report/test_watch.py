from runmanager.outcome import Outcome, Status
from runmanager.report import watch
from tests.report.reading import by_id, parse, text_of, write_runs

GRID = [{"lr": lr} for lr in (0.1, 0.2, 0.3)]


def test_a_page_is_renewed_when_runs_change_until_it_is_interrupted(tmp_path, monkeypatch):
    pending = {2: Outcome(Status.PENDING)}
    write_runs(tmp_path / "grid", GRID, lambda run: run["lr"], outcomes=pending)
    target = tmp_path / "report.html"
    lines: list[str] = []
    looks = []

    def sleep(seconds):
        assert seconds >= 2
        page = parse(target)
        looks.append(
            (text_of(by_id(page, "headline")), next(page.iter("body")).get("data-seconds"), target.stat())
        )
        if len(looks) == 2:
            done = dict.fromkeys((0, 1), Outcome(Status.PENDING))  # they are there already
            write_runs(tmp_path / "grid", GRID, lambda run: run["lr"], outcomes=done)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    watch.watch_runs(tmp_path / "grid", target, say=lines.append)

    assert [title for title, _, _ in looks] == [
        "Run 2 (lr=0.2) is best: test_accuracy 0.2",
        "Run 2 (lr=0.2) is best: test_accuracy 0.2",
        "Run 3 (lr=0.3) is best: test_accuracy 0.3",
    ]
    assert all(seconds for _, seconds, _ in looks)
    assert looks[0][2].st_ino == looks[1][2].st_ino  # nothing had changed
    assert next(parse(target).iter("body")).get("data-seconds") is None
    assert lines == [
        f"{target} is written and renewed until Ctrl-C: open it in a browser",
        f"{target} is written for the last time",
    ]
