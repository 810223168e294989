"""A file of the user that hides a module of torch, as `timeit.py` beside the script."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runmanager.core.files import for_people
from runmanager.errors import MissingExtraError
from runmanager.user_code import caller, is_users_file


@contextmanager
def importing_torch() -> Iterator[None]:
    """Name a file of the user that hides a module of torch, which the block imports."""
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):  # torch imports the script itself
        raise _error(caller()[0])
    try:
        yield
    except Exception as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        names = [frame.f_globals.get("__name__") for frame in frames]
        if "torch" not in names:
            raise
        paths = [frame.f_code.co_filename for frame in frames[names.index("torch") :]]
        paths += [getattr(sys.modules.get(name), "__file__", "<none>") for name in sys.stdlib_module_names]
        for path in paths:
            if is_users_file(path):
                raise _error(path) from None
        raise


def _error(path: str) -> MissingExtraError:
    fact = f"a worker could not start: your file {for_people(Path(path))} hides a module of torch"
    return MissingExtraError(f"{fact}: give it another name")
