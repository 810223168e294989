"""The SummaryWriter of a run, which writes into its event file."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter

from runmanager.core.contracts import RunListener
from runmanager.tensorboard.run_log import RunLog


def writer_of(board: RunListener | None, folder: Path) -> SummaryWriter:
    """Return a SummaryWriter into a run's event file; without a file, it drops all values."""
    return RunWriter(folder, board.add if isinstance(board, RunLog) else lambda _: None)


class RunWriter(SummaryWriter):
    """A SummaryWriter that passes events to `write` in the calling thread, and has no file of its own."""

    def __init__(self, folder: Path, write: Callable[[Event], None]) -> None:
        self._write = write
        super().__init__(log_dir=str(folder))

    def _get_file_writer(self) -> FileWriter:
        writer: Any = FileWriter.__new__(FileWriter)
        # events are written at once, into a file that the run opens and closes
        nothing = dict.fromkeys(("flush", "close", "reopen"), lambda: None)
        writer.event_writer = SimpleNamespace(add_event=self._write, get_logdir=lambda: self.log_dir, **nothing)
        return writer  # type: ignore[no-any-return]  # torch annotates neither

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, walltime: Any = None
    ) -> None:
        """Add scalars as ``main_tag/name``; torch would show each name as another run."""
        for name, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{name}", value, global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: Any,
        metric_dict: Any,
        hparam_domain_discrete: Any = None,
        run_name: Any = None,
        global_step: Any = None,
    ) -> None:
        """Add only the metrics, as scalars, as the event file already has the run's HParams."""
        del hparam_dict, hparam_domain_discrete, run_name
        for name, value in metric_dict.items():
            self.add_scalar(name, value, global_step)
