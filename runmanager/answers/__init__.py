"""Answers from a table of runs: the best setting, what matters, what differs, what failed."""

import runmanager.drawing  # noqa: F401 - before rich
