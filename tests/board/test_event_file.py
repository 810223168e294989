import io
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter

from runmanager.core.experiment import RunFolder
from runmanager.tensorboard import event_file
from runmanager.tensorboard.hparams import session_start
from tests.board.reading import accumulated, event_files, events_in


def hparams_of(params: dict[str, Any]) -> dict[str, Any]:
    info = session_start(RunFolder(Path("e/001"), 1, "id", params), {}).session_start_info
    return {name: getattr(shown, shown.WhichOneof("kind")) for name, shown in info.hparams.items()}


def write(folder: Path, *events: Event) -> None:
    with event_file.begin_file(folder) as file:
        event_file.write(file, *events)


@pytest.mark.parametrize("length", [0, 1, 1024, 70_001])
def test_a_record_is_framed_as_tensorboard_does(length):
    event, ours, expected = Event(file_version="x" * length), io.BytesIO(), io.BytesIO()
    RecordWriter(expected).write(event.SerializeToString())

    event_file.write(ours, event)

    assert ours.getvalue() == expected.getvalue()


def test_every_event_is_read_back_in_order(tmp_path):
    tags = [f"{'long ' * size}tag" for size in (0, 10, 1000, 20_000)]
    write(tmp_path, *(event_file.event(step, {tag: step / 4}) for step, tag in enumerate(tags)))

    version, start, *logged = events_in(tmp_path)

    assert version.file_version == "brain.Event:2"
    assert (start.session_log.status, start.step) == (SessionLog.START, 0)
    points = [(e.step, e.summary.value[0].tag, e.summary.value[0].simple_value) for e in logged]
    assert points == [(step, tag, step / 4) for step, tag in enumerate(tags)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e39, -1e300])
def test_what_float32_cannot_hold_becomes_nan(tmp_path, value):
    write(tmp_path, event_file.event(1, {"loss": value}))

    assert math.isnan(accumulated(tmp_path).Scalars("loss")[0].value)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_scalar_keeps_every_value_of_float32(value):
    assert event_file.event(1, {"a": value}).summary.value[0].simple_value == value


@pytest.mark.parametrize("clock", [0, 86_400, -86_400], ids=["same second", "later", "set back"])
def test_a_later_files_name_comes_after_all_earlier(tmp_path, monkeypatch, clock):
    now = time.time()
    paths = []

    for attempt in range(1, 12):
        monkeypatch.setattr(time, "time", lambda attempt=attempt: now + attempt * clock)
        with event_file.begin_file(tmp_path, attempt) as file:
            paths.append(Path(file.name))

    assert event_files(tmp_path) == paths


def test_a_file_that_continues_earlier_ones_starts_at_its_step(tmp_path):
    event_file.begin_file(tmp_path, 1).close()

    file = event_file.begin_file(tmp_path, 2, first_step=4)
    file.close()

    assert len(event_files(tmp_path)) == 2
    assert [event.step for event in EventFileLoader(str(file.name)).Load()] == [0, 4]


def test_hparams_keep_bool_and_number_apart():
    shown = hparams_of({"amp": True, "off": False, "lr": 0.1, "batch_size": 64, "large": 2**64})

    assert shown == {"amp": True, "off": False, "lr": 0.1, "batch_size": 64, "large": 2.0**64}
    assert {name for name, value in shown.items() if isinstance(value, bool)} == {"amp", "off"}


def test_hparams_of_numpy_are_like_pythons():
    shown = hparams_of({"a": np.float64(0.5), "b": np.float32(0.5), "c": np.int64(5), "d": np.bool_(True)})

    assert shown == {"a": 0.5, "b": 0.5, "c": 5.0, "d": True}
    assert type(shown["d"]) is bool


def test_hparams_of_any_other_kind_are_short_text():
    shown = hparams_of(
        {
            "schedule": None,
            "sizes": (3, 0.10),
            "names": ["a", "b"],
            "device": torch.device("cuda:1"),
            "act": torch.nn.ReLU,
            "dtype": torch.float16,
            "root": Path("a/b"),
        }
    )

    assert shown == {
        "schedule": "none",
        "sizes": "(3, 0.1)",
        "names": "(a, b)",
        "device": "cuda:1",
        "act": "ReLU",
        "dtype": "torch.float16",
        "root": "a/b",
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [(math.inf, "inf"), (math.nan, "nan"), pytest.param(10**400, f"1{56 * '0'}~397fc6", id="huge")],
)
def test_hparams_that_are_no_finite_number_are_text(value, expected):
    assert hparams_of({"x": value}) == {"x": expected}
