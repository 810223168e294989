import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager.outcome import BatchProgress, EpochRecord
from runmanager.screen.running import Running

NEW = Running(7, {}, 0, "cuda:0", 100.0, 100.0)


def test_time_is_known_after_the_first_epoch():
    begun = NEW.after(BatchProgress(1, 1, 4), 101.0).after(BatchProgress(1, 10, 4), 108.0)
    after_one = begun.after(EpochRecord(1, {}), 110.0)

    assert (NEW.total, begun.total) == (None, None)
    assert (after_one.done, after_one.total, after_one.part) == (0.25, 37.0, 1.0)
    assert after_one.after(BatchProgress(2, 5, 4), 115.0).done == 0.375
    assert after_one.after(EpochRecord(2, {}), 120.0).total == 39.0  # the first second is not repeated


def test_where_the_loader_says_how_many_batches_there_are_the_first_epoch_tells_the_time():
    begun = NEW.after(BatchProgress(1, 1, 1, 60, 2.3), 103.0)
    later = begun.after(BatchProgress(1, 31, 1, 60, 1.2), 118.0)

    assert (begun.done, begun.total) == (1 / 60, None)
    assert later.total == pytest.approx(3 + 0.5 * 59)  # 3 s to the first batch, half a second for each other


def test_a_run_that_goes_on_counts_the_epochs_that_it_executes():
    run = NEW.after(BatchProgress(7, 1, 10), 101.0).after(EpochRecord(7, {}), 110.0)

    assert (run.part, run.done, run.total) == (0.4, 0.25, 37.0)


def test_without_the_number_of_epochs_no_time_is_known():
    run = NEW.after(EpochRecord(1, {}), 110.0)

    assert (run.part, run.done, run.total) == (1.0, 0.0, None)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(1, 9)), max_size=9), st.integers(1, 9))
def test_whatever_is_heard_a_part_is_a_part(news, num_epochs):
    run = NEW
    for is_record, epoch, step in news:
        run = run.after(EpochRecord(epoch, {}) if is_record else BatchProgress(epoch, step, num_epochs), 200.0)

    assert 0 <= run.done <= 1
    assert 0 < run.part <= 1
