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
from tensorboard.backend.event_processing.event_accumulator import ScalarEvent
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.summary.writer.record_writer import RecordWriter

from runmanager.tensorboard import event_file
from runmanager.tensorboard.hparams import SessionFormat
from tests.board.reading import accumulated, event_files, events_in, texts_in


def hparams_of(params: dict[str, Any]) -> dict[str, Any]:
    value = event_file.session_start(SessionFormat().hparams(params), "group")
    info = metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    return {name: getattr(shown, shown.WhichOneof("kind")) for name, shown in info.hparams.items()}


@pytest.mark.parametrize("length", [0, 1, 1024, 70_001])
def test_a_record_is_framed_as_tensorboard_does(length):
    content = np.random.default_rng(0).integers(0, 256, length, dtype=np.uint8).tobytes()
    written = io.BytesIO()
    RecordWriter(written).write(content)

    assert event_file.framed(content) == written.getvalue()


def test_every_event_is_read_back_in_order(tmp_path):
    file = event_file.EventFile(tmp_path)
    tags = [f"{'long ' * size}tag" for size in (0, 10, 1000, 20_000)]
    file.write(*(event_file.event(step, [event_file.scalar(tag, step / 4)]) for step, tag in enumerate(tags)))
    file.close()

    version, start, *logged = events_in(tmp_path)

    assert version.file_version == "brain.Event:2"
    assert (start.session_log.status, start.step) == (SessionLog.START, 0)
    points = [(e.step, e.summary.value[0].tag, e.summary.value[0].simple_value) for e in logged]
    assert points == [(step, tag, step / 4) for step, tag in enumerate(tags)]


def test_what_is_written_is_read_before_the_file_is_closed(tmp_path):
    file = event_file.EventFile(tmp_path)

    file.write(event_file.event(1, [event_file.scalar("a", 1)]))
    num_read = len(list(EventFileLoader(str(file.path)).Load()))
    file.close()

    assert num_read == 3


def test_one_event_holds_several_scalars_at_the_given_time(tmp_path):
    file = event_file.EventFile(tmp_path)

    file.write(event_file.event(3, [event_file.scalar("a", 1), event_file.scalar("b", 2)], wall_time=5))
    file.close()

    read = accumulated(tmp_path)
    assert read.Scalars("a") == [ScalarEvent(5, 3, 1)]
    assert read.Scalars("b") == [ScalarEvent(5, 3, 2)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e39, -1e300])
def test_what_float32_cannot_hold_becomes_nan(tmp_path, value):
    file = event_file.EventFile(tmp_path)

    file.write(event_file.event(1, [event_file.scalar("loss", value)]))
    file.close()

    assert math.isnan(accumulated(tmp_path).Scalars("loss")[0].value)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_scalar_keeps_every_value_of_float32(value):
    assert event_file.scalar("a", value).simple_value == value


@pytest.mark.parametrize("clock", [0, 86_400, -86_400], ids=["same second", "later", "set back"])
def test_a_later_files_name_comes_after_all_earlier(tmp_path, monkeypatch, clock):
    now = time.time()
    paths = []

    for attempt in range(1, 12):
        monkeypatch.setattr(time, "time", lambda attempt=attempt: now + attempt * clock)
        file = event_file.EventFile(tmp_path, attempt)
        file.close()
        paths.append(file.path)

    assert event_files(tmp_path) == paths


def test_a_file_that_continues_earlier_ones_starts_at_its_step(tmp_path):
    event_file.EventFile(tmp_path, 1).close()

    file = event_file.EventFile(tmp_path, 2, first_step=4)
    file.close()

    assert len(event_files(tmp_path)) == 2
    assert [event.step for event in EventFileLoader(str(file.path)).Load()] == [0, 4]


def test_a_file_that_takes_a_part_at_a_time_gets_every_byte(tmp_path):
    class Slow:
        content = b""

        def write(self, rest: memoryview) -> int:
            self.content += bytes(rest[:7])
            return min(7, len(rest))

    file, slow = event_file.EventFile(tmp_path), Slow()
    file.close()
    file._file = slow  # type: ignore[assignment]

    file.write(Event(step=1, wall_time=2), Event(step=2, wall_time=3))

    expected = [event_file.framed(Event(step=s, wall_time=s + 1).SerializeToString()) for s in (1, 2)]
    assert slow.content == b"".join(expected)


def test_a_file_that_cannot_be_begun_is_closed(tmp_path, monkeypatch):
    def full(file: event_file.EventFile, *written: Event) -> None:
        files.append(file)
        raise OSError("full")

    files: list[event_file.EventFile] = []
    monkeypatch.setattr(event_file.EventFile, "write", full)

    with pytest.raises(OSError, match="full"):
        event_file.EventFile(tmp_path)

    assert files[0]._file.closed


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


@pytest.mark.parametrize(("success", "status"), [(True, Status.STATUS_SUCCESS), (False, Status.STATUS_FAILURE)])
def test_a_session_ends_with_its_status_and_time(success, status):
    before = time.time() - 0.02  # the clock of the package may step by 16 ms

    value = event_file.session_end(success=success)

    info = metadata.parse_session_end_info_plugin_data(value.metadata.plugin_data.content)
    assert info.status == status
    assert before <= info.end_time_secs <= time.time()


def test_a_layout_has_the_categories_and_charts_in_order():
    value = event_file.layout({"first": {"loss": ["^loss/"], "time": ["^a$", "^b$"]}, "second": {}})

    layout = layout_pb2.Layout.FromString(value.tensor.string_val[0])
    assert [
        (category.title, [(chart.title, list(chart.multiline.tag)) for chart in category.chart])
        for category in layout.category
    ] == [("first", [("loss", ["^loss/"]), ("time", ["^a$", "^b$"])]), ("second", [])]


def test_text_keeps_all_but_what_is_no_unicode(tmp_path):
    file = event_file.EventFile(tmp_path)

    file.write(event_file.event(0, [event_file.text_value("note", "µ ✓ \udc80")]))
    file.close()

    assert texts_in(tmp_path) == {"note": "µ ✓ ?"}
