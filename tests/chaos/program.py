"""A process of the chaos tests: it starts or continues an experiment, and may meet a fault."""

import json
import os
import posix
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from runmanager import ExperimentLockedError, StorageError
from tests.border.disk import Disk, NthCall
from tests.chaos import work


def main(root: str, fault: dict[str, Any] | None = None, start: str = "", **job: Any) -> int:
    """Execute the experiment as soon as a file is there; return the exit code."""
    os.setsid()
    vars(os)["fsync"] = posix.fsync  # which tests/warm.py leaves out
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "'pin_memory' argument is set")  # of a machine without an accelerator
    warnings.simplefilter("ignore", ResourceWarning)  # of a module that a signal tears while it is read
    if fault:
        Disk(Path(root), setattr).fault = NthCall(**fault)
    try:
        work.wait_for(start)
        return work.execute(root, **job)
    except (StorageError, ExperimentLockedError) as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return 74 if isinstance(error, StorageError) else 2
    except KeyboardInterrupt:
        traceback.print_exc()
        return 130


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
