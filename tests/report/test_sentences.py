"""The sentences of a page against pandas and SciPy, on grids of many kinds."""

import itertools
import math
import random
import re
from typing import Any

import pandas as pd
import pytest
from scipy import stats

from runmanager.answers.failures import failures
from runmanager.answers.verdict import verdict
from runmanager.answers.verdict_sentence import sentence_of
from runmanager.core.experiment import RunFolder
from runmanager.core.outcome import EpochRecord, Status
from runmanager.core.state import RunResult
from runmanager.core.values import identity, key_of
from runmanager.report.model import PageAxis, report_data
from runmanager.report.points import effect_figures

KINDS = ("even", "uneven", "random", "failed", "ties", "single", "loss")
NAMES = ("lr", "width", "net", "seed")
SPACE: dict[str, list[Any]] = {
    "lr": [0.1, 0.01, 0.001],
    "width": [16, 64],
    "net": ["cnn", "mlp"],
    "seed": [1, 2, 3, 4, 5],
}


class Case:
    """Runs, the page's data of them, and the same runs as a plain table."""

    def __init__(self, kind, number, tmp_path):
        rng = random.Random(f"{kind} {number}")  # noqa: S311 - no secret
        self.kind = kind
        self.metric = "test_loss" if kind == "loss" else "test_accuracy"
        self.sign = -1 if kind == "loss" else 1
        grid = [dict(zip(NAMES, values, strict=True)) for values in itertools.product(*SPACE.values())]
        if kind == "uneven":
            grid = [run for run in grid if rng.random() < 0.5]
        elif kind == "random":
            draws = {"lr": rng.random, "width": lambda: rng.choice([16, 64]), "seed": lambda: 1}
            grid = [{name: draw() for name, draw in draws.items()} for _ in range(rng.randint(5, 40))]
        elif kind == "single":
            grid = [run for run in grid if run["seed"] == 1]
        slopes = {name: rng.choice([0, 0.02, 0.1]) for name in NAMES}
        twist = rng.choice([0, 0.1])
        rows, results = [], []
        for position, params in enumerate(grid, 1):
            level = (
                0.4
                + slopes["lr"] * math.log10(params["lr"] + 0.01) / 2
                + slopes["width"] * params["width"] / 64
            )
            level += twist * (params.get("net") == "cnn") * (params["lr"] > 0.01) + rng.gauss(0, 0.02)
            score = round(level * 8) / 8 if kind == "ties" else level
            has_failed = kind == "failed" and rng.random() < (0.6 if params["lr"] == 0.1 else 0.15)
            error = f"loss became nan in epoch {position}" if has_failed else ""
            status = Status.DIVERGED if has_failed else Status.COMPLETED
            folder = RunFolder(tmp_path / "grid" / str(position), position, identity(params), params)
            epochs = [
                EpochRecord(1, {"loss": 1.0, "epoch duration": 1.0, "run duration": 1.0, self.metric: score})
            ]
            results.append(RunResult(folder, status, epochs, 1, error, {"device": "cpu"}))
            rows.append({**params, "status": str(status), "score": score})
        self.data = report_data("grid", {"grid": results})
        self.table = pd.DataFrame(rows)
        self.axes = [name for name in grid[0] if name != "seed"]
        self.has_repeats = len(set(self.table["seed"])) > 1
        done = self.table[self.table["status"] == "completed"]
        keys_of = self.axes if self.has_repeats else ["seed", *self.axes]
        keys = done[keys_of].apply(tuple, axis="columns") if self.has_repeats else done.index
        self.settings = done.groupby(keys, sort=False)["score"].agg(["mean", "std", "count"])
        self.settings[self.axes] = done.groupby(keys, sort=False)[self.axes].first()

    def groups(self, axis):
        """Return value -> mean for each group of settings that are equal but for an axis."""
        others = [name for name in self.axes if name != axis]
        groups = [group for _, group in self.settings.groupby(others)] if others else [self.settings]
        return [group.groupby(axis)["mean"].mean().to_dict() for group in groups]


@pytest.fixture(scope="module", params=[f"{kind} {number}" for kind in KINDS for number in range(4)])
def case(request, tmp_path_factory):
    kind, number = request.param.split()
    return Case(kind, int(number), tmp_path_factory.mktemp("runs"))


def match(pattern, words):
    """Return what a pattern matches, which has to be there."""
    matched = re.search(pattern, words)
    assert matched, words
    return matched


def written(number):
    """Match a number to the digits that a page shows."""
    return pytest.approx(number, rel=6e-3, abs=1e-12)


def test_no_sentence_of_the_headline_contradicts_the_table(case):
    ranked = case.settings
    if case.has_repeats:
        failed = case.table[case.table["status"] != "completed"]
        have_lost = set(failed[case.axes].itertuples(index=False, name=None))
        enough = [1 if key in have_lost else 2 for key in ranked.index]
        ranked = ranked[(ranked["count"] > 1) | (ranked["count"].max() <= enough)]
    best = case.sign * (case.sign * ranked["mean"]).max()
    ties = ranked[[math.isclose(mean, best, rel_tol=1e-12) for mean in ranked["mean"]]]
    answers = case.data.answers
    title, lead = answers.headline, " ".join(answers.details)
    first = title
    if answers.has_verdict:
        assert title == answers.headline
        best_is = r" (?:is best|leads|has the (?:highest|lowest) \w+): "
        assert re.search(best_is, lead)
        first, _, _ = lead.partition(". ")

    score = r"(\S+?)(?:, (of one seed|the mean of (\d+) seeds))?(?:, 95 % interval (\S+) to (\S+?))?"
    numbers = match(rf"{case.metric}:? {score}(?:; .*)?\.?$", first)
    assert float(numbers[1]) == written(best)
    named = [row for _, row in ties.iterrows() if all(says(first, case.data, axis, row) for axis in case.axes)]
    assert named
    row = named[0]
    if numbers[4]:
        assert row["count"] > 1
        low, high = stats.t.interval(0.95, row["count"] - 1, row["mean"], row["std"] / math.sqrt(row["count"]))
        inside = (max(low, 0), min(high, 1)) if case.metric.endswith("accuracy") else (low, high)
        assert (float(numbers[4]), float(numbers[5])) == (written(inside[0]), written(inside[1]))
    else:
        assert row["count"] == 1 or not row["std"] > 0 or len(ties) > 1
    if answers.has_verdict:
        assert int(numbers[3] or 1) == (1 if ", tied with " in first else row["count"])
    others = re.search(r", tied with (?:(\d+) others|.*), ", first)
    assert (int(others[1] or 1) if others else 0) == len(ties) - 1
    if gap := re.search(r"Its lead is (\S+);", lead):
        following = (case.sign * ranked["mean"]).nlargest(2).iloc[1] * case.sign
        assert float(gap[1]) == pytest.approx(abs(best - following), rel=0.06)
    if single := re.search(r"has (\S+), but one seed: it ranks below", lead):
        alone = case.settings[case.settings["count"] == 1]["mean"] * case.sign
        assert float(single[1]) * case.sign == written(alone.max())
        assert alone.max() > case.sign * best
    elif case.has_repeats and len(ranked) < len(case.settings):
        assert (case.settings["mean"].drop(ranked.index) * case.sign).max() <= case.sign * best + 1e-9


def says(title, data, axis, row):
    """Whether a title names a value of an axis, if it names one."""
    named = re.search(rf"\b{axis}=(\S+?)(?=[ ),]|$)", title)
    (page_axis,) = [each for each in data.axes if each.name == axis]
    return not named or named[1] == page_axis.label(row[axis])


def test_a_lead_is_called_more_than_chance_only_where_paired_t_tests_agree(case):
    verdict = sentence_of(case.data.answers.decision)
    scores = [
        {case.table["seed"][row]: case.table["score"][row] for row in setting.rows if done(case, row)}
        for setting in case.data.ranking.leaders
    ]
    if "more than chance" in verdict:
        for other in scores[1:]:
            both = [(scores[0][seed], other[seed]) for seed in scores[0].keys() & other.keys()]
            assert stats.ttest_rel(*zip(*both, strict=True)).pvalue < 0.05
    if number := re.search(r"best of (\d+) settings", verdict):
        assert int(number[1]) <= len(scores)


def done(case, row):
    return case.table["status"][row] == "completed"


def test_what_an_axis_changes_is_the_mean_over_all_pairs_that_differ_in_it_alone(case):
    pattern = r"(?:Changing |, )(\w+)(?: alone changes \w+)? by (\S+?)(?: on average)?(?=[,;.](?: |$))"
    sizes = dict(re.findall(pattern, case.data.answers.matters.sentence))

    for axis in case.axes:
        each = [itertools.combinations(group.values(), 2) for group in case.groups(axis)]
        pairs = [abs(a - b) for a, b in itertools.chain(*each)]
        _, size = case.data.answers.matters.changes.get(axis, ("", math.nan))
        assert bool(pairs) == math.isfinite(size)
        if pairs and axis in sizes:
            assert float(sizes[axis]) == pytest.approx(sum(pairs) / len(pairs), rel=0.06, abs=1e-12)
        assert pairs or axis not in sizes


def test_the_sentence_of_an_effect_is_the_verdict_where_all_else_is_equal(case):
    for effect in effect_figures(case.data):
        axis, words = effect["name"], effect["words"]
        if "All else equal" in words:
            assert str(verdict(case.data.runs, axis)) in words
        else:
            assert case.data.is_searched or max(map(len, case.groups(axis))) == 1


def test_failures_count_the_runs_that_they_name(case):
    table = case.table
    for failure in failures(case.data.runs):
        failed = table["status"] == failure.status
        assert set(failure.rows) == set(table.index[failed])  # they differ in a number alone
        if counts := re.match(r"(?:all (\d+) runs|(\d+) of the (\d+) runs)(?: with (.*))?$", failure.runs):
            chosen = pd.Series(True, table.index)
            for condition in filter(None, (counts[4] or "").split(" and ")):
                name, _, values = condition.partition("=")
                chosen &= table[name].astype(str).isin(values.split(" or "))
            assert int(counts[1] or counts[3]) == chosen.sum()
            assert int(counts[1] or counts[2]) == (failed & chosen).sum() == failed.sum()
        else:
            assert failed.sum() == 1


def test_none_is_called_so_also_where_a_column_of_numbers_has_nan():
    keys = [key_of(value) for value in (0.1, None)]
    axis = PageAxis("lr", ["0.1", "None"], [0, 1], is_ordered=False, keys=keys)

    assert axis.label(math.nan) == "None"
