"""Combinations of a grid in a random order, without listing all of them."""

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def shuffled(size: int, seed: int) -> Iterator[int]:
    """Yield the numbers below `size` in a random order; memory and time are those of the numbers drawn.

    Fisher and Yates' shuffle, which remembers no more than what it has moved.

    >>> sorted(shuffled(4, seed=0)), next(shuffled(10**30, seed=0)) < 10**30
    ([0, 1, 2, 3], True)
    """
    random_ = random.Random(seed)  # noqa: S311 - no secret
    moved: dict[int, int] = {}
    index = 0
    while index < size:  # which may be more than range() can count
        other = random_.randrange(index, size)
        first, drawn = moved.get(index, index), moved.get(other, other)
        moved[other] = first
        yield drawn
        index += 1


def combination(axes: Sequence[Sequence[T]], index: int) -> list[T]:
    """Return the combination that `itertools.product` of the axes has at an index.

    >>> [combination([[0.1, 0.01], [8, 64]], index) for index in range(4)]
    [[0.1, 8], [0.1, 64], [0.01, 8], [0.01, 64]]
    """
    values: list[T] = []
    for axis in reversed(axes):
        index, position = divmod(index, len(axis))
        values.append(axis[position])
    return values[::-1]
