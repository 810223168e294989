"""What TensorBoard shows of a run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runmanager.board.run_log import RunLogs


def run_logs(histogram_every: int) -> "RunLogs":
    """Return what makes the event file of each run; it loads TensorBoard's modules only now."""
    from runmanager.board.run_log import RunLogs

    return RunLogs(histogram_every)
