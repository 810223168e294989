import pytest
import torch
from torch import nn

from runmanager.session.variables import Variable, digest_of, reached


class Raising:
    """An object whose attributes raise."""

    @property
    def dataset(self):
        raise RuntimeError("not set up")

    def state_dict(self):
        return {}


class Holder:
    """An object without a text of its own."""

    def __init__(self, value):
        self.value = value


def test_an_object_whose_attributes_raise_is_hidden():
    state = reached({"odd": Variable(Raising(), "", True, is_local=True)}, {})

    assert state.hidden == {"odd": "Raising"}


def test_an_object_is_compared_by_its_attributes_not_by_its_address():
    assert digest_of(Holder(1)) == digest_of(Holder(1)) != digest_of(Holder(2))


def test_the_order_of_a_set_does_not_count():
    assert digest_of({"a", "b"}) == digest_of({"b", "a"})


@pytest.mark.parametrize(
    "value", [torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.bfloat16)]
)
def test_tensors_that_numpy_does_not_know_have_a_digest(value):
    assert digest_of(value) == digest_of(value.clone())


def test_tied_weights_are_seen():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight

    state = reached({"network": Variable([first, second], "", True, is_local=True)}, {})

    assert "network[0].weight" in state.leaves
