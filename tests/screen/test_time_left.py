import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager.screen.time_left import costs, rounded, scheduled

SECONDS = st.floats(0.01, 1000)


def test_a_run_takes_as_long_as_its_setting_else_as_its_device():
    past = [
        ({"lr": 1, "seed": 0, "device": "cpu"}, 10.0),
        ({"lr": 1, "seed": 1, "device": "cpu"}, 14.0),
        ({"lr": 1, "seed": 2, "device": "cpu"}, 90.0),
        ({"lr": 2, "seed": 0, "device": "cuda"}, 1.0),
    ]
    runs = [{"lr": lr, "seed": 3, "device": device} for lr, device in ((1, "cpu"), (3, "cuda"), (3, "mps"))]

    assert costs(runs, past, ["seed"]) == [14.0, 1.0, 12.0]


@given(st.lists(SECONDS, min_size=1), st.integers(1, 5))
def test_several_lanes_take_between_their_share_and_the_sum(seconds, lanes):
    left = scheduled(seconds, [0.0] * lanes)

    assert sum(seconds) / lanes * 0.999 <= left <= sum(seconds) * 1.001


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "1 s"), (47, "45 s"), (102, "1 min 40 s"), (700, "12 min"), (4700, "1 h 20 min"), (3e5, "3 d")],
)
def test_a_time_is_rounded_to_what_an_estimate_knows(seconds, words):
    assert rounded(seconds) == words
