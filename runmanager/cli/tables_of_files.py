"""Read a table of another tool for a command: the meaning of each column is certain, or asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runmanager.cli.common import say
from runmanager.core.wording import listed
from runmanager.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

# columns that W&B, MLflow and TensorBoard write about a run
_ABOUT_RUNS = frozenset((
    "commit", "created", "description", "duration", "end time", "end_time", "experiment", "folder",
    "group", "hostname", "id", "job type", "name", "notes", "run", "run id", "run_id", "runtime", "source name",
    "start time", "start_time", "state", "status", "sweep", "tags", "unnamed: 0", "updated", "user", "username",
))  # fmt: skip


def read_table(
    path: Path, goals: Sequence[str] | None, repeats: Sequence[str] | None, hyperparameters: str | None
) -> "pd.DataFrame":
    """Read a file with a row per run; ask for the hyperparameters if their columns are not certain."""
    from runmanager.tables.columns import HYPERPARAMETERS
    from runmanager.tables.formats import load_table
    from runmanager.tables.where import names_in

    table = load_table(path)
    names = names_in(hyperparameters or "") or list(table.attrs.get(HYPERPARAMETERS, ()))
    if not names:
        names = _certain(table, path, goals or (), repeats or ())
        which = ", ".join([*names, *(repeats or ())])
        say(f"{path}: the hyperparameters are {which}; to correct: --hyperparameters")
    return load_table(table, hyperparameters=names, repeats=repeats, goal=goals)


def _certain(table: "pd.DataFrame", path: Path, goals: Sequence[str], repeats: Sequence[str]) -> list[str]:
    """Return the hyperparameters of a table, or refuse the table.

    They are certain if all settings, the combinations of their values, have the same repeats: a metric that
    were among them would tear a setting apart.
    """
    import pandas as pd

    from runmanager.answers.ranking import check_comparable, numbered
    from runmanager.core.goal import is_larger_better
    from runmanager.tables.where import check_columns

    check_comparable(table)
    check_columns(repeats, table)
    metrics = {goal.split(":", 1)[-1] for goal in goals} | set(goals)
    numbers = pd.DataFrame({name: numbered(table[name])[0] for name in map(str, table)})
    candidates = [
        name
        for name in map(str, numbers)
        if numbers[name].any()  # codes begin with 0: several values
        and not (name in repeats or name in metrics or is_larger_better(name) is not None)
        and not (name.startswith("_") or name.lower() in _ABOUT_RUNS)
    ]
    if candidates and repeats:
        settings = numbers.groupby(candidates)[list(repeats)]
        each = {tuple(sorted(part.itertuples(index=False, name=None))) for _, part in settings}
        if len(each) == 1 and len({*each.pop()}) > 1:
            return candidates
    which = listed(candidates) if candidates else listed(list(map(str, table)))
    rule = f"{path} does not say which columns are hyperparameters"
    example = ",".join(candidates[:2]) or "lr"
    raise InvalidArgumentError(
        [f"{rule}: name them among {which}, as --hyperparameters {example}, and the repeats, as --repeats seed"]
    )
