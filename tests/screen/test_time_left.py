import heapq
import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager.screen.time_left import (
    _OVERDUE,
    Estimate,
    Underway,
    about,
    costs,
    rounded,
    scheduled,
    time_left,
)

SECONDS = st.floats(0.01, 1e6)
PARAMS = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([0.1, 0.01]),
        "batch_size": st.integers(1, 3),
        "device": st.sampled_from(["cpu", "cuda"]),
    }
)
KNOWN = st.lists(st.tuples(PARAMS, SECONDS), min_size=1, max_size=8)
UNDERWAY = st.builds(Underway, PARAMS, SECONDS, st.none() | SECONDS, st.floats(0.01, 1))


def seconds_left(*arguments):
    estimate = time_left(*arguments)
    assert estimate is not None
    return estimate.seconds


@given(st.lists(PARAMS, max_size=5), KNOWN)
def test_an_estimate_lies_within_what_is_known(runs, known):
    least, most = min(seconds for _, seconds in known), max(seconds for _, seconds in known)

    estimated = costs(runs, known)[0]

    assert len(estimated) == len(runs)
    assert all(least * 0.999 <= cost <= most * 1.001 for cost in estimated)


@given(st.lists(PARAMS, min_size=1, max_size=5), KNOWN, st.floats(0.1, 10))
def test_a_machine_that_is_slower_takes_longer_in_the_same_proportion(runs, known, factor):
    slower = [(params, seconds * factor) for params, seconds in known]

    assert costs(runs, slower)[0] == pytest.approx([factor * cost for cost in costs(runs, known)[0]], rel=1e-6)


def test_the_hyperparameters_that_decide_the_cost_are_found():
    known = [
        ({"lr": lr, "batch_size": size, "device": device}, size * (9 if device == "cpu" else 1))
        for lr in (0.1, 0.01)
        for size in (1, 2, 4)
        for device in ("cpu", "cuda")
    ]

    of_new_lr = costs([{"lr": 0.001, "batch_size": 2, "device": "cpu"}], known)[0][0]
    new_cell = costs([{"lr": 0.1, "batch_size": 4, "device": "cpu"}], [k for k in known if k[1] < 36])[0][0]

    assert of_new_lr == pytest.approx(18, rel=0.1)
    assert new_cell > 15  # batch_size=4 on the cpu was not seen: the slower of both says so


def test_runs_may_have_other_hyperparameters_than_those_that_are_known():
    assert costs([{"new": 1}, {}], [({"lr": [0.1]}, 3.0), ({}, 3.0)])[0] == pytest.approx([3, 3])


def test_a_run_that_took_no_time_is_no_trouble():
    assert costs([{"lr": 1}], [({"lr": 1}, 0.0)])[0] == pytest.approx([0.001])


@given(st.lists(PARAMS, max_size=5), st.lists(UNDERWAY, max_size=3), KNOWN, st.integers(1, 3))
def test_time_left_is_never_negative_and_at_most_the_sum_of_all(waiting, running, known, lanes):
    left = time_left(waiting, running, known, lanes)

    assert left is not None
    assert 0 <= left.least <= left.seconds <= left.most < math.inf
    totals = [run.total / run.part for run in running if run.total is not None]
    overdue = [run.elapsed / run.part for run in running]
    most = max([seconds for _, seconds in known] + totals + overdue)
    assert left.seconds <= _OVERDUE * (len(waiting) + len(running)) * most * 1.001


@given(st.lists(PARAMS, max_size=6), KNOWN, st.integers(1, 4))
def test_two_lanes_take_no_longer_than_one(waiting, known, lanes):
    alone, together = time_left(waiting, [], known, 1), time_left(waiting, [], known, lanes)

    assert alone is not None
    assert together is not None
    assert alone.seconds / lanes * 0.999 <= together.seconds <= alone.seconds * 1.001


def test_nothing_is_said_while_nothing_is_known():
    assert time_left([{"lr": 1}], [Underway({"lr": 2}, 5.0)], [], 1) is None


def test_nothing_is_left_of_a_grid_that_is_done():
    assert time_left([], [], [], 2) == (0, 0, 0)


def test_a_run_that_is_half_done_says_what_the_others_take():
    assert seconds_left([{"lr": 1}], [Underway({"lr": 2}, 5.0, 10.0)], [], 1) == pytest.approx(15)


def test_a_run_that_goes_on_after_half_of_its_epochs_takes_half_as_long():
    known = [({"lr": 1}, 10.0)]

    assert seconds_left([], [Underway({"lr": 1}, 0.0, None, 0.5)], known, 1) == pytest.approx(5)
    assert seconds_left([{"lr": 1}], [Underway({"lr": 1}, 0.0, 4.0, 0.5)], [], 1) == pytest.approx(4 + 8)


def test_a_run_that_takes_longer_than_estimated_says_that_the_others_like_it_do_too():
    known, overdue = [({"lr": 1}, 10.0)], Underway({"lr": 2}, 99.0)

    left = seconds_left([{"lr": 2}], [overdue], known, 1)

    assert seconds_left([], [overdue], known, 1) > 0
    assert left > 60


def test_the_range_is_wider_the_less_is_known():
    def width(known):
        left = time_left([{"lr": 1, "seed": seed} for seed in range(8)], [], known, 1)
        assert left is not None
        return left.most / left.least

    one = [({"lr": 1, "seed": 0}, 10.0)]
    alike = [({"lr": 1, "seed": seed}, 10.0) for seed in range(8)]
    unlike = [({"lr": 1, "seed": seed}, 4.0 + 4 * seed) for seed in range(4)]

    assert width(alike) < width(one)
    assert width(alike) < width(unlike)


def test_the_pause_between_two_runs_of_a_lane_counts_for_each_run_that_waits():
    waiting, past = [{"lr": 1}] * 4, [({"lr": 1}, 10.0)]

    def seconds(lanes, pause):
        left = time_left(waiting, [], past, lanes, pause)
        assert left is not None
        return left.seconds

    assert seconds(1, 2.0) - seconds(1, 0.0) == pytest.approx(8)
    assert seconds(2, 2.0) - seconds(2, 0.0) == pytest.approx(4)


def test_runs_are_taken_in_their_order_by_the_lane_that_is_free_first():
    assert scheduled([5, 1, 1, 1], [0, 0]) == 5
    assert scheduled([1, 1, 1, 5], [0, 0.5]) == 6.5


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "1 s"),
        (3.4, "3 s"),
        (37, "35 s"),
        (60, "1 min"),
        (12.4 * 60, "12 min"),
        (33 * 60, "35 min"),
        (59 * 60, "1 h"),
        (78 * 60, "1 h 20 min"),
        (7 * 3600, "7 h"),
        (20.4 * 3600, "20 h"),
        (47.9 * 3600, "2 d"),
        (1e9, "11574 d"),
    ],
)
def test_a_time_is_written_as_coarsely_as_it_is_known(seconds, words):
    assert rounded(seconds) == words


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        ((720, 600, 900), "12 min left (10 to 15 min)"),
        ((102, 70, 170), "1 min 40 s left (1 to 3 min)"),
        ((290, 270, 330), "4 min 50 s left (4 to 6 min)"),
        ((50, 40, 70), "50 s left (40 s to 1 min)"),
        ((720, 715, 725), "12 min left"),
        ((5400, 4800, 6000), "1 h 30 min left (1 h 20 min to 1 h 40 min)"),
    ],
)
def test_the_time_left_is_written_with_its_range_where_it_has_one(estimate, words):
    assert about(Estimate(*estimate)) == words


def relative_error(seed):
    """Simulate a grid whose axes repeat: by how much is its time left missed half way?"""
    rng = random.Random(seed)  # noqa: S311 - no secret
    effects = {
        f"axis{number}": [rng.lognormvariate(0, rng.choice([0.03, 1])) for _ in range(rng.randint(2, 4))]
        for number in range(rng.randint(2, 4))
    }
    grid = [
        dict(zip(effects, values, strict=True))
        for values in itertools.product(*map(range, map(len, effects.values())))
    ]
    if rng.random() < 0.3:
        rng.shuffle(grid)
    lanes = rng.choice([1, 2, 4])
    free, times = [0.0] * lanes, []
    for params in grid:
        cost = math.prod(effects[name][value] for name, value in params.items()) * rng.lognormvariate(0, 0.1)
        start = heapq.heappop(free)
        heapq.heappush(free, start + cost)
        times.append((params, start, start + cost))
    now = max(free) / 2
    running = []
    for params, start, end in times:
        if start <= now < end:
            done = math.floor(10 * (now - start) / (end - start)) / 10  # of ten epochs
            running.append(Underway(params, now - start, end - start if done else None))
    waiting = [params for params, start, _ in times if start > now]
    known = [(params, end - start) for params, start, end in times if end <= now]
    left = time_left(waiting, running, known, lanes)
    return None if left is None else (abs(left.seconds - now) / now, left.least <= now <= left.most)


@pytest.mark.slow(everywhere=True)
def test_half_way_the_time_left_is_known_well():
    errors, is_within = zip(*filter(None, map(relative_error, range(300))), strict=True)

    assert len(errors) > 280
    assert statistics.mean(is_within) > 0.8
    assert statistics.median(errors) < 0.15
    assert statistics.quantiles(errors, n=4)[2] < 0.35
