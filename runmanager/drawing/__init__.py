"""Tables and lines, drawn for terminals, notebooks and files."""

import random

_state = random.getstate()
import rich.style  # noqa: E402, F401 - its first import draws a random number, which users' programs must not see

random.setstate(_state)
