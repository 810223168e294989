"""The event files of runs, and the TensorBoard server that shows them."""

from typing import TYPE_CHECKING

from runmanager.tensorboard.options import TensorBoard

if TYPE_CHECKING:
    from runmanager.tensorboard.run_log import RunLogs


def run_logs(tensorboard: bool | TensorBoard) -> "RunLogs | None":
    """Return the factory of TensorBoard listeners, None for False; only here is TensorBoard imported."""
    if not tensorboard:
        return None
    from runmanager.tensorboard.run_log import RunLogs

    return RunLogs(tensorboard.histogram_every if isinstance(tensorboard, TensorBoard) else 1)
