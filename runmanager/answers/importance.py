"""Compute the importance of each hyperparameter for a good result, by Optuna's evaluators."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from runmanager.answers.finding import Finding, with_sentence
from runmanager.answers.ranking import axes_of, numbered, ranking_of
from runmanager.answers.sampled import is_in_magnitudes, is_missing, is_sampled
from runmanager.answers.sentences import percents
from runmanager.core.wording import counted
from runmanager.errors import MissingExtraError
from runmanager.tables.columns import check_table

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.importance import BaseImportanceEvaluator

ENOUGH = 50
"""The number of settings from which PED-ANOVA is reliable."""

BEST = 0.25  # the share of the settings that PED-ANOVA compares with all settings
# Of 40 random searches of four axes, the two axes that matter came first in 60 % with the best quarter of 30
# settings, in 35 % with the best tenth (the default of Optuna), in 38 % with the best half.

_MOST_NAMED = 4  # maximum number of named hyperparameters after the first one


def importances(
    runs: pd.DataFrame,
    goal: str | None = None,
    *,
    repeats: str | Sequence[str] | None = None,
    evaluator: "BaseImportanceEvaluator | None" = None,
) -> Finding:
    """Return the importance of each hyperparameter for a good result, as fractions that add up to 1.

    Use this function for a sample or a search, whose hyperparameters vary together; for a grid, see `effects`.
    It needs Optuna: ``pip install 'torch-runmanager[optuna]'``.

    Args:
        runs: The table of `load_runs`, or rows of it. Only completed runs count.
        goal: The metric that is the result, as in `best`.
        repeats: The axes that only repeat a setting, as in `best`; each setting counts by its mean.
        evaluator: An evaluator of ``optuna.importance``. The default is PED-ANOVA, which measures how much a
            hyperparameter distinguishes the best quarter of the settings from all settings. Source: Watanabe et
            al. (2023), PED-ANOVA. ``FanovaImportanceEvaluator(seed=0)`` returns fractions of the variation; it
            needs scikit-learn.

    Returns:
        One row per hyperparameter that varies, the most important first: `axis` and `importance`. Importances
        from few runs vary much between samples; they are NaN if all results are equal. `sentence` says which
        hyperparameters matter most.

    Raises:
        MissingExtraError: Optuna is not installed.
        InvalidArgumentError: `best` refuses the arguments.

    Example:
        >>> runs = pd.DataFrame({"lr": [10**-e for e in range(1, 21)], "width": [8, 64] * 10})
        >>> runs["accuracy"] = [1 / (1 + abs(e - 4)) for e in range(1, 21)]
        >>> runs.attrs["hyperparameters"] = ["lr", "width"]  # load_runs() sets them
        >>> importances(runs).axis.tolist()
        ['lr', 'width']
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("importances needs optuna: pip install 'torch-runmanager[optuna]'") from error
    check_table(runs, needs_axes=True)
    ranking = ranking_of(runs, goal, repeats)
    rated = sorted(ranking.settings, key=lambda setting: setting.rows[0])
    scores = [setting.mean for setting in rated]
    settings = runs.iloc[[setting.rows[0] for setting in rated]]
    names = [name for name in axes_of(runs, ranking.repeats) if len(numbered(settings[name])[1]) > 1]
    if len(set(scores)) < 2 or not names:  # noqa: PLR2004 - all are equal
        table = pd.DataFrame({"axis": names, "importance": math.nan})
        text = f"All runs have the same {ranking.goal.metric}" if names else "No hyperparameter varies"
        return with_sentence(table, text, ranking.assumption)
    with _quiet():
        study = optuna.create_study(direction="maximize" if ranking.goal.is_larger_better else "minimize")
        columns = {name: _column(settings[name]) for name in names}
        for row, score in enumerate(scores):
            params = {name: values[row] for name, (values, _) in columns.items() if values[row] is not None}
            spaces = {name: columns[name][1] for name in params}
            study.add_trial(optuna.create_trial(params=params, distributions=spaces, value=score))
        is_default = evaluator is None
        evaluator = evaluator or optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    ordered = sorted(shares, key=lambda name: -shares[name])
    table = pd.DataFrame({"axis": ordered, "importance": [float(shares[name]) for name in ordered]})
    (first, share), *others = zip(ordered, percents(table["importance"].tolist()), strict=True)
    what = "being among the best quarter by " if is_default else ""
    text = f"{first} matters most for {what}{ranking.goal.metric}: {share} of the importance"
    text += "".join(f"; {name} {part}" for name, part in others[:_MOST_NAMED])
    text += f"; of only {counted(len(scores), 'result')}, that may be chance" if len(scores) < ENOUGH else ""
    return with_sentence(table, text, ranking.assumption)


def _column(column: "pd.Series[Any]") -> tuple[list[Any], "BaseDistribution"]:
    """Return an axis as the parameters of trials, None for a missing value, and their distribution."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    there = [value for value in column.tolist() if not is_missing(value)]
    if is_sampled(there):
        low, high = min(there), max(there)
        log = is_in_magnitudes(there)
        is_whole = all(float(value).is_integer() for value in there) and (high - low) < 2**53
        kind, number = (IntDistribution, int) if is_whole else (FloatDistribution, float)
        space = kind(number(low), number(high), log=log)
        return [None if is_missing(value) else number(value) for value in column.tolist()], space
    pairs = zip(numbered(column)[0].tolist(), column.tolist(), strict=True)
    codes = [None if is_missing(value) else code for code, value in pairs]
    return codes, CategoricalDistribution([code for code in dict.fromkeys(codes) if code is not None])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's log, which would report the temporary study."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
