"""ImageTensors and TensorLoader: batches of tensors in a seeded order, on any device."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_tensor

from runmanager import ImageTensors, TensorLoader


def make_images(dtype=torch.uint8):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (10, 1, 4, 5), generator=generator, dtype=torch.uint8)
    return ImageTensors(images.to(dtype), torch.arange(10), ("even", "odd"))


DATA = make_images()


def orders(loader):
    return [[labels.tolist() for _, labels in loader] for _ in range(2)]


def test_images_and_labels_are_fetched_sent_shortened_and_pickled_together():
    image, label = DATA[3]
    images, labels = DATA[[1, 2]]
    first, sent, copy = DATA.first(4), DATA.to("meta"), pickle.loads(pickle.dumps(DATA))

    assert len(DATA) == 10
    assert torch.equal(image, DATA.images[3])
    assert (images.shape, labels.tolist(), label.item()) == ((2, 1, 4, 5), [1, 2], 3)
    assert (len(first), first.images.data_ptr()) == (4, DATA.images.data_ptr())  # not copied
    assert {sent.images.device.type, sent.labels.device.type} == {"meta"}
    assert torch.equal(copy.images, DATA.images)
    assert {data.classes for data in (first, sent, copy)} == {("even", "odd")}


def test_images_without_their_labels_are_refused():
    with pytest.raises(ValueError, match="10 images but 9 labels"):
        ImageTensors(torch.zeros(10, 1, 2, 2), torch.zeros(9))


def test_every_byte_is_scaled_exactly_as_torchvision_does_and_floats_are_left_alone():
    bytes_ = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    floats = torch.rand(1, 1, 16, 16, generator=torch.Generator()) + 1

    (scaled, _), (same, _) = (
        next(iter(TensorLoader(ImageTensors(x, torch.zeros(1)), 1))) for x in (bytes_, floats)
    )

    assert scaled.dtype == torch.float32
    assert torch.equal(scaled, bytes_ / 255)
    assert torch.equal(scaled[0], to_tensor(bytes_[0, 0].numpy()))
    assert torch.equal(same, floats)


def test_a_batch_is_scaled_images_and_their_labels():
    loader = TensorLoader(DATA, 4, shuffle=False)

    found = list(loader)

    assert len(found) == len(loader) == 3
    assert [len(labels) for _, labels in found] == [4, 4, 2]
    assert torch.equal(torch.cat([images for images, _ in found]), DATA.images / 255)
    assert torch.equal(torch.cat([labels for _, labels in found]), DATA.labels)
    assert {(images.dtype, labels.dtype) for images, labels in found} == {(torch.float32, torch.int64)}


def test_the_order_is_new_every_epoch_and_follows_from_the_seed_as_in_torchs_loader():
    first, second = orders(TensorLoader(DATA, 4, seed=5))
    torchs = DataLoader(DATA, 4, shuffle=True, generator=torch.Generator().manual_seed(5))

    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(10))  # noqa: RUF017 - short
    assert first != second
    assert orders(torchs) == [first, second]
    assert orders(TensorLoader(DATA, 4, seed=6))[0] != first


@pytest.mark.parametrize("batch_size", [4, 5])
def test_a_pass_that_is_resumed_after_its_last_batch_is_over_and_the_next_order_is_the_same(batch_size):
    loader, resumed = (TensorLoader(DATA, batch_size) for _ in range(2))
    first, _ = orders(loader)
    other = iter(loader := TensorLoader(DATA, batch_size))
    for _ in first:
        next(other)
    resumed.load_state_dict(loader.state_dict())

    assert [*other] == []
    assert orders(resumed) == [[], orders(loader)[0]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_iterating_uses_no_global_random_state(num_workers):
    expected = orders(TensorLoader(DATA, 4))
    before = torch.get_rng_state()

    found = orders(TensorLoader(DATA, 4, num_workers=num_workers))
    after = torch.get_rng_state()
    torch.manual_seed(99)
    seeded = orders(TensorLoader(DATA, 4, num_workers=num_workers))
    torch.set_rng_state(before)

    assert torch.equal(after, before)
    assert found == seeded == expected


def test_batches_never_share_memory_with_the_dataset():
    data = make_images(dtype=torch.float32)
    before = data.images.clone()

    for images, labels in TensorLoader(data, 4, shuffle=False):
        images.zero_()
        labels.zero_()

    assert torch.equal(data.images, before)
    assert data.labels.tolist() == list(range(10))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_on_cuda_are_those_of_the_cpu(num_workers):
    found = list(TensorLoader(DATA, 4, device="cuda", num_workers=num_workers))

    for (images, labels), expected in zip(found, TensorLoader(DATA, 4), strict=True):
        assert (images.device.type, labels.device.type) == ("cuda", "cuda")
        assert torch.equal(images.cpu(), expected[0])
        assert torch.equal(labels.cpu(), expected[1])
