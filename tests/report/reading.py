"""Runs to write pages of, and the pages as trees."""

import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree as ET

from runmanager.core.experiment import Experiment
from runmanager.core.files import ERROR_LOG
from runmanager.core.journal import Journal
from runmanager.core.outcome import EpochRecord, Outcome, Status

_VOID = {"meta", "input", "br", "link", "img", "wbr"}


def write_runs(
    path: Path,
    grid: list[dict[str, Any]],
    score: Any,
    *,
    num_epochs: int = 3,
    outcomes: dict[int, Outcome] | None = None,
) -> Path:
    """Write an experiment whose runs got a test_accuracy of ``score(run)`` in their last epoch.

    Args:
        path: Its folder.
        grid: The hyperparameters of each run.
        score: Gives the last test_accuracy.
        num_epochs: Of every run that is completed.
        outcomes: Position in the grid -> how that run ended, if it is not completed.
    """
    with mock.patch("os.fsync"):
        for position, folder in enumerate(Experiment(path).plan(grid, {})):
            outcome = (outcomes or {}).get(position, Outcome(Status.COMPLETED, "", num_epochs))
            if outcome.status is Status.PENDING:
                continue
            folder.path.mkdir()
            seconds = 1.0 if folder.params.get("device") == "cuda" else 3.0
            versions = {"python": "3.11.7", "torch": "2.15.0"}
            start = {"after": 0, "device": "cpu", "versions": versions, "command": "grid.py", "commit": "abc"}
            journal = Journal(folder.path, 1, start)
            for epoch in range(1, outcome.epochs + 1):
                value = score(folder.params) * (1 - math.exp(-3 * epoch / num_epochs)) / (1 - math.exp(-3))
                metrics = {"loss": 1 - value, "accuracy": value, "epoch duration": seconds}
                metrics |= {"run duration": seconds * epoch, "test_loss": 2 - value, "test_accuracy": value}
                journal.epoch(EpochRecord(epoch, metrics))
            journal.end(outcome)
            if outcome.status is Status.FAILED:
                (folder.path / ERROR_LOG).write_text(f"Traceback\n{outcome.error}\n")
    return path


def parse(path: Path) -> ET.Element:
    """Read a page as a tree; elements that are not closed in order are an error."""
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert len(reader.open) == 1, [element.tag for element in reader.open]
    return reader.open[0]


def text_of(element: ET.Element | None) -> str:
    """Return the text of an element, as one line."""
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def by_id(page: ET.Element, name: str) -> ET.Element:
    """Find the element with an id."""
    (found,) = [element for element in page.iter() if element.get("id") == name]
    return found


def figure(page: ET.Element, name: str) -> ET.Element:
    """Find a figure by its name."""
    return by_id(page, name)


def marks(page: ET.Element, name: str, kind: str) -> list[ET.Element]:
    """Find the marks of a kind in a figure."""
    return [path for path in figure(page, name).iter("path") if kind in path.get("class", "").split()]


class Reader(HTMLParser):
    """Makes a tree of what it reads: `open` has its root."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [ET.Element("document")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = ET.SubElement(self.open[-1], tag, {name: value or "" for name, value in attrs})
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        ET.SubElement(self.open[-1], tag, {name: value or "" for name, value in attrs})

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        if len(self.open[-1]):
            self.open[-1][-1].tail = (self.open[-1][-1].tail or "") + data
        else:
            self.open[-1].text = (self.open[-1].text or "") + data
