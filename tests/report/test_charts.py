import itertools
import json
import math
import re
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.colors import SIGHTS, contrast, distance, least_distance
from benchmarks.page import themes
from runmanager import write_report
from runmanager.core.experiment import Experiment
from runmanager.core.journal import Journal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.report.svg import Scale, apart, value_scale
from tests.report.reading import by_id, figure, marks, parse, text_of, write_runs

GRID = [{"lr": lr, "seed": seed, "device": "cpu"} for lr in (0.1, 0.01) for seed in range(4)]


def page_of(tmp_path, grid, score, **options):
    return parse(write_report(write_runs(tmp_path / "grid", grid, score, **options), tmp_path / "report.html"))


def numbers(d):
    return [float(number) for number in re.findall(r"-?[\d.]+", d)]


@pytest.mark.parametrize(
    ("low", "high"),
    [(-1e308, 1e308), (0.0, math.inf), (1.7e308, 1.7e308), (5e-324, 1e308), (5e-324, 5e-324)],
)
@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_any_numbers_have_a_scale(low, high, is_logarithmic):
    scale = Scale(low, high, 0, 100, is_logarithmic=is_logarithmic and low > 0)

    assert all(map(math.isfinite, [scale(1.0), *map(scale, scale.ticks())]))


@given(st.lists(st.floats(0, 200), min_size=1, max_size=12))
def test_labels_are_apart_wherever_lines_end(positions):
    moved = apart(positions, 12, 0, 200)

    assert len(moved) == len(positions)
    assert all(after - before >= 12 - 1e-9 for before, after in itertools.pairwise(sorted(moved)))
    assert all(-1e-9 <= each <= 200 for each in moved)


@pytest.mark.parametrize(("low", "high"), [(5e-324, 1.0), (5e-324, 1e308), (1e-300, 1e300)])
def test_the_room_at_the_ends_of_an_axis_leaves_it_a_scale(low, high):
    scale = value_scale(low, high, 0, 100)

    assert all(map(math.isfinite, map(scale, [low, high, *scale.ticks()])))


def test_an_axis_is_logarithmic_if_positive_numbers_span_two_decades():
    assert value_scale(0.01, 7.0, 0, 100).is_logarithmic
    assert not value_scale(0.1, 7.0, 0, 100).is_logarithmic
    assert not value_scale(-0.01, 7.0, 0, 100).is_logarithmic


def test_repeats_have_their_mean_and_interval(tmp_path):
    page = page_of(tmp_path, GRID, lambda run: 0.5 + 4 * run["lr"] + 0.01 * run["seed"])

    (band, other), middles = marks(page, "curves-0", "band"), marks(page, "curves-0", "middle")
    assert {band.get("data-runs"), other.get("data-runs")} == {"3 2 1 0", "7 6 5 4"}
    assert len(middles) == 2
    assert "Thick colored lines are means, bands their 95 % interval" in text_of(by_id(page, "learning"))
    assert "resumed" not in text_of(by_id(page, "learning"))
    ends = numbers(marks(page, "curves-0", "middle")[0].get("d"))[-2:]
    _, low = numbers(band.get("d"))[4:6]
    assert low > ends[1]  # the lower side of the band is below the mean


@pytest.mark.parametrize(
    ("runs", "bands"),
    [
        ([(0.1, 1)], ""),
        ([(0.1, 1), (0.1, 2)], "bands their 95 % interval (of two runs, their range)."),
    ],
)
def test_the_key_of_the_curves_names_only_what_is_drawn(tmp_path, runs, bands):
    grid = [{"lr": lr, "seed": seed} for lr, seed in [*runs, (0.3, 4)]]
    page = page_of(tmp_path, grid, lambda run: run["lr"] + run["seed"] / 100)

    words = text_of(by_id(page, "learning"))
    assert bool(bands) == bool(marks(page, "curves-0", "band")) == ("means" in words)
    assert bands in words
    assert "the best run (thick), with a dot at its best epoch" in words
    assert "resumed" not in words


def test_the_means_of_a_value_are_over_what_is_equal_otherwise(tmp_path):
    # width 512 was tried with the good lr alone: on average over all runs it would be far above the others
    grid = [{"lr": lr, "width": width} for lr in (0.1, 0.01) for width in (32, 128)]
    grid.append({"lr": 0.1, "width": 512})
    page = page_of(tmp_path, grid, lambda run: (0.9 if run["lr"] == 0.1 else 0.1) + run["width"] / 10_000)
    name = next(each for each in ("effect-0", "effect-1") if "width" in text_of(figure(page, each)))

    heights = [numbers(mark.get("d"))[1] for mark in marks(page, name, "mean")]

    assert len(heights) >= 2
    assert max(heights) - min(heights) < 20  # of 200 and more that the two values of lr are apart


def test_the_best_and_the_resumed_epochs_are_marked(tmp_path):
    for number, folder in enumerate(Experiment(tmp_path / "grid").plan([{"lr": 0.1}, {"lr": 0.2}], {})):
        folder.path.mkdir()
        written = Journal(folder.path, 1, {"after": 0})
        for epoch, value in enumerate((0.1, 0.4, 0.9, 0.5), 1):
            record = EpochRecord(epoch, {"accuracy": value + number}, {}, cold=number == 0 and epoch in (1, 3))
            written.epoch(record)
        written.end(Outcome(Status.COMPLETED, "", 4))

    page = parse(write_report(tmp_path / "grid", tmp_path / "report.html"))

    (peak,) = marks(page, "curves-0", "peak")
    (best,) = [mark for mark in marks(page, "curves-0", "run") if "best" in mark.attrib["class"]]
    assert numbers(peak.get("d"))[:2] == numbers(best.get("d"))[4:6]  # of the third epoch
    (frame,) = figure(page, "curves-0").iter("rect")
    left, top, width, height = (float(frame.attrib[name]) for name in ("x", "y", "width", "height"))
    xs, ys = numbers(best.get("d"))[::2], numbers(best.get("d"))[1::2]
    assert left + 5 <= min(xs) < max(xs) <= left + width - 5  # a dot at an end is whole
    assert top + 5 <= min(ys) < max(ys) <= top + height - 5
    (resumed,) = marks(page, "curves-0", "resumed")
    assert resumed.get("data-r") == "0"
    assert resumed.attrib["d"].count("M") == 1
    assert "A short upright line marks an epoch from which a run was resumed." in text_of(page)


def test_the_ends_of_lines_are_labelled(tmp_path):
    page = page_of(tmp_path, GRID, lambda run: 0.5 + 0.001 * run["lr"])

    ends = [text for text in figure(page, "curves-0").iter("text") if "end" in text.get("class", "")]
    assert sorted(map(text_of, ends)) == ["0.01", "0.1", "run 1"]
    heights = sorted(float(text.attrib["y"]) for text in ends)
    assert min(after - before for before, after in itertools.pairwise(heights)) >= 12


def test_a_label_stands_beside_a_line_that_did_not_diverge(tmp_path):
    lrs = (0.1, 0.1, 0.1, 0.2)
    grid = [{"lr": lr, "width": width} for width, lr in enumerate(lrs)]
    outcomes = {number: Outcome(Status.DIVERGED, "loss became nan", 1) for number in (0, 1)}
    page = page_of(tmp_path, grid, lambda run: run["lr"] * (1 + run["width"]), outcomes=outcomes)

    ends = [text for text in figure(page, "curves-0").iter("text") if text.get("class", "").startswith("end ")]
    last = {mark.get("data-r"): numbers(mark.get("d"))[-1] for mark in marks(page, "curves-0", "run")}
    assert [text.get("y") for text in ends if text_of(text) == "0.1"] == [f"{last['2'] + 4:.1f}"]


def test_curves_that_leave_the_frame_are_counted(tmp_path):
    grid = [{"lr": lr} for lr in range(1, 61)]

    page = page_of(tmp_path, grid, lambda run: -100.0 if run["lr"] == 60 else 0.5 + run["lr"] / 1000)

    assert "1 curve leaves the frame." in text_of(by_id(page, "learning"))


def test_a_curve_of_one_point_is_a_dot(tmp_path):
    outcomes = {0: Outcome(Status.PRUNED, "", 1)}
    page = page_of(tmp_path, [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"], outcomes=outcomes)

    assert [mark.get("data-r") for mark in marks(page, "curves-0", "dot")] == ["0"]


def test_attempts_have_a_bar_on_their_device(tmp_path):
    outcomes = {
        3: Outcome(Status.FAILED, "ValueError: no", 1),
        4: Outcome(Status.DIVERGED, "loss became nan", 1),
    }
    with mock.patch("time.time", itertools.count(1.7e9).__next__):
        write_runs(tmp_path / "grid", GRID, lambda run: run["lr"], outcomes=outcomes)

    page = parse(write_report(tmp_path / "grid", tmp_path / "report.html"))

    bars = marks(page, "timeline", "bar")
    assert sorted(int(bar.attrib["data-runs"]) for bar in bars) == list(range(8))
    assert [bar.get("data-runs") for bar in bars if "lost" in bar.attrib["class"]] == ["3", "4"]
    assert len(marks(page, "timeline", "cross")) == 2


@pytest.mark.slow
def test_the_page_has_everything_of_the_best_runs_and_numbers_of_all(tmp_path):
    grid = [{"lr": number / 1000, "device": "cpu"} for number in range(310)]
    page = page_of(tmp_path, grid, lambda run: run["lr"], num_epochs=2)

    data = json.loads(by_id(page, "page-data").text or "")
    assert len(data["views"]) == 300
    assert "309" in data["views"]
    assert "0" not in data["views"]
    assert len(data["scores"]) == 310
    assert 50 < len(marks(page, "curves-0", "run")) <= 100


def test_colors_are_told_apart_by_everybody_and_seen_by_everybody():
    for colors in themes().values():
        for kind in "co":
            palette = [colors[f"{kind}{index}"] for index in range(6)]
            assert min(contrast(color, colors[back]) for color in palette for back in ("card", "paper")) >= 3
            for sight in ("", *SIGHTS):
                assert least_distance(palette, sight, neighbours=kind == "o") >= 10
        for text in ("ink", "soft", "accent", "bad", "warn"):
            assert min(contrast(colors[text], colors[back]) for back in ("card", "paper")) >= 4.5


def test_the_distance_of_colors_is_that_of_the_standard():
    assert contrast("#ffffff", "#767676") == pytest.approx(4.54, abs=0.01)
    assert distance("#ff0000", "#00ff00") == pytest.approx(86.61, abs=0.05)
    assert distance("#808080", "#808080") == 0
    assert distance("#0000ff", "#0000fa") == pytest.approx(distance("#0000fa", "#0000ff"))


def test_no_control_character_of_a_value_gets_into_the_page(tmp_path):
    grid = [{"a": value, "lr": lr} for value in ("a\x00b", "\x1b[31m") for lr in (0.1, 0.2)]
    path = write_report(write_runs(tmp_path / "grid", grid, lambda run: run["lr"]), tmp_path / "page.html")

    assert [char for char in path.read_text("utf-8") if not char.isprintable() and char != "\n"] == []
