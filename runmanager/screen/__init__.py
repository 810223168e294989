"""The display of a grid: the live display or plain lines, and the panel at the end."""

import runmanager.drawing  # noqa: F401 - before rich
