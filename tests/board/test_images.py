import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from runmanager.tensorboard.pictures import samples, sheet


def decoded(images: torch.Tensor) -> np.ndarray:
    part = samples(images)
    assert part is not None
    image = sheet(part)
    png, width, height, channels = image.encoded_image_string, image.width, image.height, image.colorspace
    picture = Image.open(io.BytesIO(png), formats=["PNG"])
    assert (picture.size, picture.mode, channels) == ((width, height), "RGB", 3)
    return np.asarray(picture)


def test_images_lie_in_rows_of_eight():
    images = torch.zeros(10, 3, 5, 4)
    images[9, 2] = 1

    pixels = decoded(images)

    assert pixels.shape == (2 * 7, 8 * 6, 3)
    expected = np.zeros((14, 48))
    expected[7:12, 6:10] = 255  # the tenth: row 2, column 2
    assert np.array_equal(pixels[:, :, 2], expected)
    assert not pixels[:, :, :2].any()


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 70),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 512),
    width=st.integers(1, 512),
)
def test_every_sheet_has_the_size_it_says_and_stays_small(count, channels, height, width):
    images = torch.zeros(1, channels, 1, 1).expand(count, channels, height, width)

    pixels = decoded(images)

    assert pixels.shape[0] <= 516
    assert pixels.shape[1] <= 516


def test_the_smallest_value_is_black_and_the_largest_white():
    images = torch.tensor([-3.0, 1.0, 5.0]).reshape(3, 1, 1, 1)

    pixels = decoded(images)

    assert [pixels[0, 0, 0], pixels[0, 3, 0], pixels[0, 6, 0]] == [0, 127, 255]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_drawn_as_zero(value):
    images = torch.tensor([-1.0, value, 1.0]).reshape(3, 1, 1, 1)

    assert decoded(images)[0, 3, 0] == 127


def test_equal_values_are_black():
    assert not decoded(torch.full((4, 1, 3, 3), 7.0)).any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float64])
def test_every_type_of_pixel_is_drawn(dtype):
    images = torch.tensor([0, 1]).reshape(2, 1, 1, 1).to(dtype)

    pixels = decoded(images)

    assert [pixels[0, 0, 0], pixels[0, 3, 0]] == [0, 255]


def test_drawing_leaves_the_images_alone():
    images = torch.tensor([math.nan, 2.0]).reshape(2, 1, 1, 1).requires_grad_()
    before = images.detach().clone()

    sheet(images)

    assert torch.equal(images.detach().nan_to_num(9), before.nan_to_num(9))


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(2, 2, 4, 4),
        torch.zeros(2, 4, 4, 3),
        torch.zeros(0, 1, 4, 4),
        torch.zeros(2, 1, 0, 4),
        torch.zeros(2, 1, 4, 513),
        torch.zeros(2, 1, 4, 4, dtype=torch.complex64),
        torch.zeros(2, 1, 4, 4, device="meta"),
    ],
    ids=lambda batch: str(getattr(batch, "shape", batch)),
)
def test_anything_else_is_no_images(batch):
    assert samples(batch) is None


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (64, 3, 32, 32), (2, 1, 512, 512)])
def test_batches_of_gray_or_coloured_images_are_images(shape):
    assert samples(torch.zeros(1).expand(shape)) is not None
