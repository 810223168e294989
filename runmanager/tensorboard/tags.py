"""The TensorBoard tags of result columns."""

from runmanager.core.goal import EVALUATED

EPOCH = "time/epoch_s"

# TensorBoard sorts capitals first, and HParams shows the first five metrics, which are these five. All five get
# a value with the first value of the goal, so that parallel coordinates draw the run
BEST, BEST_AFTER, BEST_EPOCH, EPOCH_SECONDS, LAST = OF_GOAL = (
    "Goal/best", "Goal/best_after_s", "Goal/best_epoch", "Goal/epoch_s", "Goal/last",
)  # fmt: skip
"""The tags of the goal, for any metric."""

_TAGS = {
    "loss": "loss/train",
    "accuracy": "accuracy/train",
    "epoch duration": EPOCH,
    "run duration": "time/run_s",
    "steps seen": "time/steps",
    "samples seen": "time/samples",
    # the tag of evaluate(loader, "train"), as loss/train is the tag of the training loss
    "train_loss": "loss/train_eval",
    "train_accuracy": "accuracy/train_eval",
}


def tag(column: str) -> str:
    """Return the TensorBoard tag of a result column.

    >>> tag("loss"), tag("test_accuracy"), tag("validation_f1_macro"), tag("f1")
    ('loss/train', 'accuracy/test', 'f1_macro/validation', 'train/f1')
    """
    if column in _TAGS:
        return _TAGS[column]
    name, _, kind = column.rpartition("_")
    if name and kind in ("loss", "accuracy"):
        return f"{kind}/{name}"
    data, _, metric = column.partition("_")
    return f"{metric}/{data}" if metric and data in EVALUATED else f"train/{column}"


def step_tag(name: str) -> str:
    """Return the TensorBoard tag of a value logged by step; its x-axis is the step of the run.

    >>> step_tag("step_loss")
    'steps/step_loss'
    """
    return f"steps/{name}"


def image_tag(name: str) -> str:
    """Return the TensorBoard tag of a logged image; its x-axis is the x-axis of the epochs.

    >>> image_tag("masks")
    'images/masks'
    """
    return f"images/{name}"
