"""`load_results` of 10,000 runs x 20 epochs, against EventAccumulator.

Target: at most 1.0 s, and at least 15x EventAccumulator on one tag.
"""

import random
import statistics
import tempfile
from pathlib import Path
from unittest import mock

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.measuring import seconds, spread
from runmanager import load_results
from runmanager.core.experiment import Experiment
from runmanager.core.journal import Journal
from runmanager.core.outcome import LEADING, EpochRecord, Outcome, Status
from runmanager.tensorboard import event_file

RUNS, EPOCHS, WITH_EVENTS = 10_000, 20, 500
METRICS = (*LEADING, "test_loss", "test_accuracy")
TIMES = ("phase_data_s", "phase_train_s", "phase_eval_s")


def main() -> None:
    """Print both sides and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Path(folder) / "experiment"
        make(experiment)

        def from_journals() -> None:
            assert len(load_results(experiment)) == RUNS * EPOCHS

        load_results(experiment)  # pandas is imported, the files are in memory
        cold = seconds(from_journals, 5)
        accumulator = [RUNS / WITH_EVENTS * t for t in seconds(lambda: accumulate(experiment), 3)]
    print(f"{RUNS:,} runs x {EPOCHS} epochs")
    print(f"from journals          {spread(cold)}; target 1.0 s")
    print(f"EventAccumulator, 1 tag {spread(accumulator)}, {WITH_EVENTS} runs measured and scaled up")
    ratio = statistics.median(accumulator) / statistics.median(cold)
    print(f"ratio EventAccumulator / journals {ratio:.1f}; target 15")


def make(path: Path) -> None:
    """Write the journals of all runs, and the event files of some, without waiting for the disk."""
    draw = random.Random(0).random
    grid = [{"lr": draw(), "batch_size": number, "device": "cpu"} for number in range(RUNS)]
    with mock.patch("os.fsync"):
        for number, run in enumerate(Experiment(path).plan(grid, {})):
            run.path.mkdir()
            records = [
                EpochRecord(epoch, {name: draw() for name in METRICS}, {name: draw() for name in TIMES})
                for epoch in range(1, EPOCHS + 1)
            ]
            journal = Journal(run.path, 1, {"after": 0})
            for record in records:
                journal.epoch(record)
            journal.end(Outcome(Status.COMPLETED, "", EPOCHS))
            if number < WITH_EVENTS:
                with event_file.begin_file(run.path) as file:
                    for record in records:
                        event = event_file.event(record.epoch, record.metrics)
                        event_file.write(file, event)


def accumulate(experiment: Path) -> None:
    """Read one tag of the runs that have event files with TensorBoard's own reader."""
    for file in experiment.glob("*/events.out.tfevents.*"):
        accumulator = EventAccumulator(str(file), size_guidance={"scalars": 0})
        accumulator.Reload()
        assert len(accumulator.Scalars("loss")) == EPOCHS
