"""A file of the user that hides a module of torch, as `timeit.py` beside the script."""

import sys
import traceback
from pathlib import Path

from runmanager.core.files import for_people
from runmanager.errors import MissingExtraError
from runmanager.user_code import caller, is_users_file


def is_imported_by_torch() -> bool:
    """Whether torch, while it is imported, imports the script that calls."""
    return getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)


def name_hidden_module(error: Exception) -> None:
    """If a file of the user hides a module of torch, raise an error that names it."""
    paths = [caller()[0]] if is_imported_by_torch() else []
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_globals.get("__name__") for frame in frames]
    if "torch" in names:
        paths += [frame.f_code.co_filename for frame in frames[names.index("torch") :]]
        paths += [getattr(sys.modules.get(name), "__file__", "<none>") for name in sys.stdlib_module_names]
    for path in filter(is_users_file, paths):
        raise MissingExtraError(
            f"a worker could not start: your file {for_people(Path(path))} hides a module of torch: give it "
            "another name"
        ) from None
