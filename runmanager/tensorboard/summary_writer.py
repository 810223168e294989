"""A SummaryWriter that writes into the run's event file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter

Write = Callable[[Event], None]


class RunWriter(SummaryWriter):
    """A SummaryWriter that passes events to `write` in the calling thread, and has no file of its own.

    `add_embedding` writes its files to `folder`.
    """

    def __init__(self, folder: Path, write: Write) -> None:
        self._sink = _Sink(folder, write)
        super().__init__(log_dir=str(folder))

    def _get_file_writer(self) -> FileWriter:
        writer: Any = FileWriter.__new__(FileWriter)
        writer.event_writer = self._sink
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
        for tag, value in metric_dict.items():
            self.add_scalar(tag, value, global_step)


class _Sink:
    """The part of an EventFileWriter that torch's FileWriter calls."""

    def __init__(self, folder: Path, write: Write) -> None:
        self._folder = folder
        self.add_event = write

    def get_logdir(self) -> str:
        return str(self._folder)

    def flush(self) -> None:
        """Do nothing, as `write` does not buffer."""

    def close(self) -> None:
        """Do nothing, as `end_run` closes the file."""

    def reopen(self) -> None:
        """Do nothing, as the sink is never closed."""
