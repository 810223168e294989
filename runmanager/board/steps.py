"""The steps of a run in TensorBoard: under tags of their own, as their x-axis is the step of the run."""

from collections.abc import Iterable, Iterator, Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from runmanager.board import event_file
from runmanager.storage.steps import Block, Points

_AT_ONCE = 4096  # values: of a million events at a time, each takes a kilobyte


def tag(name: str) -> str:
    """Return the tag of a value that was logged by steps.

    >>> tag("step_loss")
    'steps/step_loss'
    """
    return f"steps/{name}"


def events(block: Block) -> list[Event]:
    """Make an event of each step in a block."""
    values: dict[int, list[Summary.Value]] = {}
    for name, (steps, numbers) in block.items():
        for step, number in zip(steps, numbers, strict=True):
            values.setdefault(step, []).append(event_file.scalar(tag(name), number))
    return [event_file.event(step, values[step]) for step in sorted(values)]


def blocks(points: Mapping[str, Points]) -> Iterator[Block]:
    """Cut points into blocks."""
    for name, (_, steps, values) in points.items():
        for start in range(0, len(steps), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            yield {name: (steps[part].tolist(), values[part].tolist())}


def tags(names: Iterable[str]) -> set[str]:
    """Return the tags of all names."""
    return {tag(name) for name in names}
