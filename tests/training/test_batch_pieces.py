from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from runmanager.errors import MetricError
from runmanager.training.batch_pieces import num_samples, piece_of

Named = namedtuple("Named", "x y")  # noqa: PYI024 - as users write it
FOUR = torch.arange(4)
IMAGES = [torch.full((3, 2, 2), float(number)) for number in range(3)]


@pytest.mark.parametrize(
    ("batch", "piece"),
    [
        ((FOUR, [FOUR, FOUR]), (FOUR[1:3], [FOUR[1:3], FOUR[1:3]])),
        ({"x": FOUR, "text": "abcd", "none": None, "scalar": torch.tensor(7), "flag": True},
         {"x": FOUR[1:3], "text": "abcd", "none": None, "scalar": torch.tensor(7), "flag": True}),
        (Named(FOUR, ["a", "b", "c", "d"]), Named(FOUR[1:3], ["b", "c"])),
        ({"boxes": [torch.ones(number, 4) for number in range(4)], "y": FOUR},
         {"boxes": [torch.ones(number, 4) for number in (1, 2)], "y": FOUR[1:3]}),
        ([np.arange(4), FOUR], [np.arange(1, 3), FOUR[1:3]]),
        ([FOUR[:2], FOUR[:2]], [FOUR[1:2], FOUR[1:2]]),  # two parts of two samples
        ((IMAGES, FOUR[:3]), (IMAGES[1:3], FOUR[1:3])),  # three images of three channels
    ],
)  # fmt: skip
def test_a_piece_has_its_samples_of_every_part(batch, piece):
    assert repr(piece_of(batch, num_samples(batch), slice(1, 3))) == repr(piece)


@pytest.mark.parametrize(
    "batch",
    [
        {"tokens": torch.arange(9), "offsets": torch.arange(3)},
        {"nothing": "to count"},
        (pack_sequence([FOUR, FOUR[:2]]), None),
        (torch.ones(4, 9), torch.ones(9)),
    ],
)
def test_a_batch_that_cannot_be_cut_is_refused(batch):
    with pytest.raises(MetricError, match="micro_batch cannot cut a"):
        piece_of(batch, num_samples(batch), slice(1, 3))
