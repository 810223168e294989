"""The correct items of evaluations, one bit per item, in a run's folder.

A file per attempt has for each evaluation the last two evaluated epochs, and the last two that were the best so
far. So it has the epoch that the goal ranks, even if a kill has lost the last epoch. The file is replaced
whole; nothing else refers to it, and an entry counts only if it has the accuracy in the journal.
"""

import base64
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from runmanager.storage import durable, paths
from runmanager.storage.journal import DAMAGED

_LARGEST = 16 * 2**20  # maximum size of a file that is read (bytes)
_NAME = re.compile(r"attempt-(?P<number>[1-9][0-9]{0,8})\.items\.json")


class Items(msgspec.Struct, frozen=True):
    """The correct items of one evaluation.

    Attributes:
        epoch: The epoch of the evaluation.
        data: The digest of the items' targets in their order.
        n: The number of items.
        bits: One bit per item, packed and in base64.
        crc: The CRC-32 of the packed bits.
    """

    epoch: int
    data: str
    n: int
    bits: str
    crc: int

    @classmethod
    def of(cls, epoch: int, data: str, correct: "np.ndarray[Any, Any]") -> "Items":
        """Pack the items of an evaluation; `correct` has a boolean per item."""
        packed = np.packbits(correct).tobytes()
        return cls(epoch, data, len(correct), base64.b64encode(packed).decode(), zlib.crc32(packed))

    def unpacked(self) -> "np.ndarray[Any, Any]":
        """Return a boolean per item.

        Raises:
            ValueError: The bits are damaged.
        """
        packed = base64.b64decode(self.bits, validate=True)
        if zlib.crc32(packed) != self.crc or len(packed) != math.ceil(self.n / 8):
            raise ValueError("the bits do not match their checksum")
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=self.n).astype(bool)


class ItemFile:
    """Writes the correct items of an attempt's evaluations."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self._path = folder / paths.items(attempt)
        self._columns: dict[str, list[Items]] = {}
        self._best: dict[str, list[Items]] = {}  # of each column, the items at the epochs that were the best
        self._score = -math.inf

    def add(self, column: str, items: Items) -> None:
        """Add an evaluation, whose accuracy is in a column, and write the file.

        Raises:
            StorageError: The file could not be written.
        """
        earlier = [each for each in self._columns.get(column, []) if each.epoch < items.epoch]
        self._columns[column] = [*earlier[-1:], items]
        content = {name: self._of(name) for name in self._columns}
        # training does not wait for the disk: damage costs a sentence in a verdict
        durable.write_file(self._path, msgspec.json.encode({"v": 1, "columns": content}), synced=False)

    def _of(self, column: str) -> list[Items]:
        each = {items.epoch: items for items in (*self._best.get(column, []), *self._columns[column])}
        return [each[epoch] for epoch in sorted(each)]

    def epoch_ended(self, score: float) -> None:
        """Keep the latest items of each evaluation if the score of the epoch is the best so far."""
        if score > self._score:
            self._score = score
            for column, each in self._columns.items():
                before = [items for items in self._best.get(column, []) if items.epoch < each[-1].epoch]
                self._best[column] = [*before[-1:], each[-1]]


def read_items(folder: Path, column: str, accuracy: float, *, first: bool) -> tuple[str, Any] | None:
    """Return the digest of the data of an evaluation, and a boolean per item; None if there are none.

    Args:
        folder: The folder of the run.
        column: The column of the accuracy.
        accuracy: The accuracy of the evaluation.
        first: Whether the first epoch with this accuracy counts, not the last.

    Raises:
        ValueError: A file is damaged; the message names it.
    """
    matching = []
    for name in sorted(_files(folder), key=lambda name: int(_NAME.sub(r"\g<number>", name))):
        try:
            for items in _read(folder / name).get(column, []):
                correct = items.unpacked()
                if items.n and abs(correct.mean() - accuracy) * items.n < 0.5:  # noqa: PLR2004 - not one item
                    matching.append((items.epoch, items.data, correct))
        except (*DAMAGED, OSError) as error:
            raise ValueError(f"{name} is damaged") from error
    if not matching:
        return None
    epoch = (min if first else max)(items[0] for items in matching)
    return next((data, correct) for number, data, correct in reversed(matching) if number == epoch)


def _files(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - no Path each
    except OSError:  # the table is of another machine
        return
    yield from (name for name in names if _NAME.fullmatch(name))


def _read(path: Path) -> Mapping[str, list[Items]]:
    content, _ = durable.read_file(path, _LARGEST)
    return msgspec.convert(json.loads(content)["columns"], dict[str, list[Items]])
