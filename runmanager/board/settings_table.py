"""The settings of a run as a table in Markdown, for TensorBoard's Text page."""

from collections.abc import Mapping
from typing import Any

from runmanager.hyperparameters import plain, text


def settings_table(params: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    """Write hyperparameters, then further details, a row each."""
    settings = {name: "none" if value is None else value for name, value in params.items()}
    rows = [*settings.items(), *(row for row in _flat(details) if row not in settings.items())]
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join(["| setting | value |", "|---|---|", *lines])


def _flat(details: Mapping[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in details.items():
        flat += _flat(value) if isinstance(value, Mapping) else [(name, value)]
    return flat


def _cell(value: Any) -> str:
    escaped = text(plain(value)).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
