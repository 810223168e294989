from typing import Any

import pytest

from runmanager import GridError, run_grid
from runmanager.report import live_page
from tests.report.reading import by_id, parse, text_of

OPTIONS: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}


def titles_while_it_runs(root, monkeypatch, **options):
    """Execute three runs; return the headline of the page during each, and whether it loads itself again."""
    monkeypatch.setattr(live_page, "_LEAST_S", 0.0)
    monkeypatch.setattr(live_page, "_SHARE", 0)
    target = root / "e" / "report.html"
    looks = []

    def train(run, manager):
        page = parse(target)
        looks.append(
            (text_of(by_id(page, "headline")), next(page.iter("body")).get("data-seconds") is not None)
        )
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(run.lr, 1)

    run_grid({"lr": [0.3, 0.2, 0.1]}, train, experiment="e", root=root, **OPTIONS, **options)
    return looks, parse(target)


def test_the_page_is_renewed_while_its_grid_runs(tmp_path, monkeypatch):
    looks, last = titles_while_it_runs(tmp_path, monkeypatch, report=True)

    assert [title for title, _ in looks] == [
        "No run has completed",
        "Run 1 (lr=0.3) has loss 0.3",
        "Run 2 (lr=0.2) is best so far: loss 0.2",
    ]
    assert all(is_live for _, is_live in looks)
    assert text_of(by_id(last, "headline")) == "Run 3 (lr=0.1) is best: loss 0.1"
    assert next(last.iter("body")).get("data-seconds") is None
    assert "wrong" not in [section.get("id") for section in last.iter("section")]


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(GridError, match=r"report must be True, False or a file to write, got 1\.5"):
        run_grid({"lr": [0.1]}, print, experiment="e", root=tmp_path, report=1.5)  # type: ignore[arg-type]
    assert not (tmp_path / "e").exists()
