import numpy as np
import pandas as pd
import pytest
import torch

from runmanager import RunManager
from runmanager.core.step_log import image_of, may_be_image
from runmanager.errors import InvalidArgumentError

RAMP = torch.linspace(0, 1, 60)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (RAMP.reshape(6, 10), (1, 6, 10)),
        (RAMP.reshape(1, 6, 10).double().requires_grad_(), (1, 6, 10)),
        (RAMP.reshape(3, 4, 5), (3, 4, 5)),
        (RAMP.reshape(4, 5, 3).half(), (3, 4, 5)),
        (np.arange(60, dtype=np.uint8).reshape(5, 4, 3)[::-1], (3, 5, 4)),
        (RAMP.numpy().reshape(6, 10), (1, 6, 10)),
    ],
)
def test_arrays_and_tensors_with_the_shape_of_an_image_are_images(value, shape):
    image = image_of("x", value)

    assert may_be_image(value)
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, shape)
    is_integer = isinstance(value, np.ndarray) and value.dtype == np.uint8
    assert int(image.max()) == (59 if is_integer else 255)


@pytest.mark.parametrize(
    "value",
    [
        RAMP.reshape(6, 10) + 1, RAMP.reshape(6, 10).long(), RAMP.reshape(6, 5, 2), np.full((2, 2), "a"),
        pd.DataFrame({"a": ["x", "y"]}), torch.zeros(2, 2, device="meta"),
        torch.zeros(2, 2, dtype=torch.cfloat),
    ],
    ids=lambda value: f"{type(value).__name__} {value.shape}",
)  # fmt: skip
def test_other_matrices_are_none(value):
    assert image_of("x", value) is None


@pytest.mark.parametrize(
    "value", [0.5, torch.zeros(()), torch.zeros(9), torch.zeros(1, 1), np.zeros(3), "x", None]
)
def test_numbers_and_vectors_are_never_read_as_images(value):
    assert not may_be_image(value)


def test_what_is_no_image_is_refused_with_what_to_write(tmp_path):
    manager = RunManager("e", tmp_path, display=False)
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(1):
            manager.log(pixels=RAMP.reshape(3, 4, 5))
            for value, message in (
                (RAMP, r"pixels must be a single value, .* got a tensor of shape \(60,\): call .mean"),
                (9 * RAMP.reshape(6, 10), r"losses must be a single value, .* of shape \(6, 10\): call .mean"),
                (9 * RAMP.reshape(3, 4, 5), r"from 0 to 9, but an image .*log\(losses=image.clamp\(0, 1"),
            ):  # fmt: skip
                with pytest.raises(InvalidArgumentError, match=message):
                    manager.log({"pixels" if value is RAMP else "losses": value})
