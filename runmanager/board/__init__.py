"""The event files of runs, and the TensorBoard server that shows them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runmanager.board.run_log import RunLogs


def run_logs(histogram_every: int) -> "RunLogs":
    """Return the factory of TensorBoard listeners; TensorBoard's modules are imported only here."""
    from runmanager.board.run_log import RunLogs

    return RunLogs(histogram_every)
