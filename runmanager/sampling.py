"""Combinations of a grid in a random order, without listing all of them."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

_MOST_REPEATED = 100_000  # draws in a row that have all been drawn before


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


def fractions(names: Sequence[object], seed: int) -> Iterator[list[float]]:
    """Yield numbers from 0 to below 1 for each axis, without end; those of an axis do not depend on the others.

    >>> next(fractions(["lr", "width"], seed=0))[1] == next(fractions(["width"], seed=0))[0]
    True
    """
    randoms = [random.Random(f"{seed} {name}") for name in names]  # noqa: S311 - no secret
    while True:
        yield [random_.random() for random_ in randoms]


def distinct(draws: Iterable[T]) -> Iterator[T]:
    """Yield each of some draws once, until no other comes for long.

    >>> [*distinct([3, 1, 3, 3, 2])]
    [3, 1, 2]
    """
    seen: set[T] = set()
    num_repeated = 0
    for draw in draws:
        if draw not in seen:
            seen.add(draw)
            num_repeated = 0
            yield draw
        elif (num_repeated := num_repeated + 1) == _MOST_REPEATED:
            return


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
