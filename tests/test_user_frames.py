import pytest

from runmanager import RunBuilder, run_grid
from runmanager.user_frames import user_frames


def names(traceback):
    found = []
    while traceback is not None:
        found.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return found


def test_the_lines_of_the_user_are_left():
    def ask():
        run_grid({"lr": 3}, print, experiment="x")

    with pytest.raises(ValueError, match="must be a list") as raised:
        ask()

    before = names(raised.value.__traceback__)
    assert names(user_frames(raised.value.__traceback__)) == [before[0], "ask"]
    assert "run_grid" in before
    assert names(raised.value.__traceback__) == before


def test_code_of_the_user_that_is_called_is_left_too():
    def where(run):
        raise KeyError(run)

    with pytest.raises(KeyError) as raised:
        RunBuilder.get_runs({"lr": [1]}, where=where)

    assert names(user_frames(raised.value.__traceback__))[1:] == ["where"]


def test_without_a_line_of_the_user_nothing_is_left():
    assert user_frames(None) is None
