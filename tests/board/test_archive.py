import random
import struct

import pytest
from tensorboard.compat.proto.event_pb2 import Event

from runmanager import RunManager, load_results
from runmanager.board import archive, event_file
from tests.board.reading import folder_scalars, train


def write(folder, attempt, steps, first_step=0, *more):
    """Write an attempt's event file with a scalar per step, and return it."""
    file = event_file.EventFile(folder, attempt, first_step)
    file.write(*(scalar(step, attempt) for step in steps), *more)
    file.close()
    return file.path


def scalar(step, value):
    return event_file.event(
        step, [event_file.scalar("loss/train", value), event_file.scalar("time/epoch_s", 1)], 5.0
    )


def points(found):
    """Return the step and the first value of events that have any."""
    return [(e.step, e.summary.value[0].simple_value) for e in found if e.HasField("summary")]


def steps(found):
    return [step for step, _ in points(found)]


def test_all_events_of_a_file_are_read(tmp_path):
    path = write(tmp_path, 1, range(1, 100))

    found = list(archive.read_events(path))

    assert found[0].file_version == "brain.Event:2"
    assert points(found) == [(step, 1.0) for step in range(1, 100)]


def test_a_file_that_was_cut_is_read_up_to_the_last_whole_record(tmp_path):
    path = write(tmp_path, 1, [1, 2, 3])
    content = path.read_bytes()
    start_of_last = len(content) - len(event_file.framed(scalar(3, 1).SerializeToString()))

    found = []
    for length in range(len(content)):
        path.write_bytes(content[:length])
        found.append(steps(archive.read_events(path)))

    assert found[start_of_last:] == [[1, 2]] * (len(content) - start_of_last)
    assert all(shown == [1, 2][: len(shown)] for shown in found)


def test_a_damaged_record_ends_a_file_and_nothing_is_invented(tmp_path):
    path = write(tmp_path, 1, [1, 2, 3])
    content = path.read_bytes()
    whole = list(archive.read_events(path))
    flips = random.Random(0)  # noqa: S311 - reproducible damage

    for _ in range(300):
        place = flips.randrange(len(content))
        path.write_bytes(
            content[:place] + bytes([content[place] ^ flips.randrange(1, 256)]) + content[place + 1 :]
        )
        found = list(archive.read_events(path))

        assert len(found) < len(whole)
        assert found == whole[: len(found)]


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", bytes(64), struct.pack("<Q", 2**63) + bytes(64)],
    ids=["", "text", "zeros", "huge"],
)
def test_a_foreign_file_has_no_events(tmp_path, content):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(content)

    assert list(archive.read_events(path)) == []


def test_what_comes_after_the_last_step_is_not_kept(tmp_path):
    write(tmp_path, 1, [0, 1, 2, 3])

    assert [steps(archive.carried_events(tmp_path, last)) for last in (0, 2, 9)] == [
        [0],
        [0, 1, 2],
        [0, 1, 2, 3],
    ]


def test_what_a_later_attempt_superseded_is_not_kept(tmp_path):
    write(tmp_path, 1, [0, 1, 2, 3])
    write(tmp_path, 2, [2, 3, 4], 2)
    write(tmp_path, 3, [4, 5], 4)

    found = archive.carried_events(tmp_path, 9)

    assert points(found) == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0), (4, 3.0), (5, 3.0)]
    assert {e.wall_time for e in found} == {5.0}


def test_how_sessions_began_and_ended_is_not_kept(tmp_path):
    session = event_file.event(
        1, [event_file.session_start({"lr": 0.1}, "1"), event_file.scalar("loss/test", 2)]
    )
    end = event_file.event(2, [event_file.session_end(success=False)])
    write(tmp_path, 1, [1], 0, session, end)

    found = archive.carried_events(tmp_path, 9)

    assert [value.tag for e in found for value in e.summary.value] == [
        "loss/train",
        "time/epoch_s",
        "loss/test",
    ]
    assert archive.has_ended(tmp_path)


def test_only_what_is_wanted_is_kept(tmp_path):
    write(tmp_path, 1, [1, 2])

    found = archive.carried_events(tmp_path, 9, lambda value: value.tag == "time/epoch_s")

    assert [[value.tag for value in e.summary.value] for e in found] == [["time/epoch_s"]] * 2
    assert archive.carried_events(tmp_path, 9, lambda _: False) == []


def test_the_graph_is_kept(tmp_path):
    write(tmp_path, 1, [1], 0, Event(graph_def=b"graph"))

    assert archive.carried_events(tmp_path, 0) == [Event(graph_def=b"graph")]
    assert archive.is_described(tmp_path)


def test_a_run_has_not_ended_before_it_says_so(tmp_path):
    write(tmp_path, 1, [1, 2])

    assert not archive.has_ended(tmp_path)
    assert not archive.is_described(tmp_path)


def test_retired_files_are_no_event_files_and_none_is_written_over(tmp_path):
    contents: list[bytes] = []
    for _ in range(3):
        contents.append(write(tmp_path, 1, [len(contents)]).read_bytes())
        archive.retire(tmp_path)

    names = ["attempt-1.evts", "attempt-1-2.evts", "attempt-1-3.evts"]
    assert [(tmp_path / name).read_bytes() for name in names] == contents
    assert archive.event_files(tmp_path) == []


def test_a_run_whose_old_event_file_was_cut_shows_every_epoch_when_it_goes_on(tmp_path):
    def interrupt(epoch):
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(RunManager("exp", tmp_path, display=False), {"lr": 1}, 4, at_end=interrupt, checkpoint=True)
    (path,) = archive.event_files(tmp_path / "exp" / "001-lr=1")
    record = next(e for e in archive.read_events(path) if e.step == 2)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(event_file.framed(record.SerializeToString())) + 9])
    train(RunManager("exp", tmp_path, display=False), {"lr": 1}, 4, checkpoint=True)

    shown = folder_scalars(path.parent)["loss/train"]

    assert [step for step, _ in shown] == [1, 2, 3, 4]
    losses = load_results(tmp_path)["loss"].astype("float32").tolist()
    assert [value for _, value in shown] == losses
