"""The options of TensorBoard's event files."""

from dataclasses import dataclass

from runmanager.core.goal import check_x_axis
from runmanager.errors import InvalidArgumentError, Problems


@dataclass(frozen=True)
class TensorBoard:
    """The options of event files: the value of ``tensorboard=`` instead of True.

    Args:
        histogram_every: The number of epochs between two sets of histograms, 0 for no histograms; the last
            epoch has a set.
        x_axis: The x axis of curves in TensorBoard and the report: "epoch", the default; "steps" or "samples",
            whose number so far then becomes a column; or a metric that `train` tracks, for example by
            ``manager.track({"env_steps": n}, how="last")``. The x axis is stored with the experiment, like
            `goal`: None keeps the stored one.

    Raises:
        InvalidArgumentError: An argument cannot be used.

    Example:
        >>> from runmanager import RunManager
        >>> manager = RunManager("example", tensorboard=TensorBoard(histogram_every=5, x_axis="samples"))
    """

    histogram_every: int = 1
    x_axis: str | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        problems.check_count("histogram_every", self.histogram_every, 0)
        with problems.collecting():
            if self.x_axis is not None:
                check_x_axis(self.x_axis)
        problems.raise_if_any(InvalidArgumentError)
