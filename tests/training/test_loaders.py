import pickle

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset
from torchvision.transforms.functional import to_tensor

from runmanager.core.loaders import (
    ImageTensors,
    TensorLoader,
    size_of_batch,
    to_unit,
)

CPU = torch.device("cpu")


def make_images(count=10, dtype=torch.uint8):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 1, 4, 5), generator=generator, dtype=torch.uint8)
    return ImageTensors(images.to(dtype), torch.arange(count), ("even", "odd"))


def two_epochs(loader):
    return [(images.tolist(), labels.tolist()) for _ in range(2) for images, labels in loader]


def labels_of(loader):
    return [labels.tolist() for _, labels in loader]


class Stream(IterableDataset[int]):
    def __iter__(self):
        return iter(range(10))


def test_images_and_labels_are_fetched_together():
    dataset = make_images()

    image, label = dataset[3]
    images, labels = dataset[[1, 2]]

    assert len(dataset) == 10
    assert torch.equal(image, dataset.images[3])
    assert (images.shape, labels.tolist(), label.item()) == ((2, 1, 4, 5), [1, 2], 3)


def test_the_first_images_are_not_copied():
    dataset = make_images()

    first = dataset.first(4)

    assert (len(first), first.classes) == (4, ("even", "odd"))
    assert first.images.data_ptr() == dataset.images.data_ptr()


def test_images_and_labels_go_to_a_device_together():
    sent = make_images().to("meta")

    assert (sent.images.device.type, sent.labels.device.type, sent.classes) == ("meta", "meta", ("even", "odd"))


def test_images_without_their_labels_are_refused():
    with pytest.raises(ValueError, match=r"^10 images but 9 labels: give as many of each$"):
        ImageTensors(torch.zeros(10, 1, 2, 2), torch.zeros(9))


def test_every_byte_is_scaled_exactly_as_torchvision_does():
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)

    scaled = to_unit(images)

    assert scaled.dtype == torch.float32
    assert torch.equal(scaled, images / 255)
    assert torch.equal(scaled[0], to_tensor(images[0, 0].numpy()))


def test_floats_are_left_alone():
    images = torch.rand(2, 1, 2, 2, generator=torch.Generator())

    assert to_unit(images) is images


def test_a_batch_is_scaled_images_and_their_labels():
    dataset = make_images()
    loader = TensorLoader(dataset, 4, shuffle=False)

    found = list(loader)

    assert len(found) == len(loader) == 3
    assert [len(labels) for _, labels in found] == [4, 4, 2]
    assert torch.equal(torch.cat([images for images, _ in found]), dataset.images / 255)
    assert torch.equal(torch.cat([labels for _, labels in found]), dataset.labels)
    assert {(images.dtype, labels.dtype) for images, labels in found} == {(torch.float32, torch.int64)}


def test_worker_processes_give_the_same_batches():
    dataset = make_images()

    alone = TensorLoader(dataset, 4, seed=5, num_workers=0)
    helped = TensorLoader(dataset, 4, seed=5, num_workers=1)

    assert two_epochs(helped) == two_epochs(alone)


def test_the_order_is_new_every_epoch_and_follows_from_the_seed():
    dataset = make_images()
    loader = TensorLoader(dataset, 4, seed=5)

    first, second = labels_of(loader), labels_of(loader)

    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(10))  # noqa: RUF017 - short
    assert first != second
    assert labels_of(TensorLoader(dataset, 4, seed=5)) == first
    assert labels_of(TensorLoader(dataset, 4, seed=6)) != first


@pytest.mark.parametrize("num_workers", [0, 1])
def test_iterating_uses_no_global_random_state(num_workers):
    loader = TensorLoader(make_images(), 4, num_workers=num_workers)
    before = torch.get_rng_state()

    list(loader)
    after = torch.get_rng_state()
    torch.manual_seed(99)
    labels = labels_of(loader)
    torch.set_rng_state(before)

    assert torch.equal(after, before)
    fresh = TensorLoader(make_images(), 4)
    list(fresh)
    assert labels == labels_of(fresh)


def test_batches_never_share_memory_with_the_dataset():
    dataset = make_images(dtype=torch.float32)
    before = dataset.images.clone()

    for images, labels in TensorLoader(dataset, 4, shuffle=False):
        images.zero_()
        labels.zero_()

    assert torch.equal(dataset.images, before)
    assert dataset.labels.tolist() == list(range(10))


def test_a_dataset_crosses_a_process_border():
    dataset = make_images()

    copy = pickle.loads(pickle.dumps(dataset))

    assert torch.equal(copy.images, dataset.images)
    assert copy.classes == dataset.classes


@pytest.mark.parametrize(
    "loader",
    [
        TensorLoader(make_images(), 4),
        TensorLoader(make_images(8), 4),
        TensorLoader(make_images(), 20),
        DataLoader(make_images(), batch_size=4),
        DataLoader(make_images(), batch_size=4, drop_last=True),
        DataLoader(make_images(), batch_size=3, sampler=[2, 4, 6, 8]),
    ],
    ids=["short last", "even", "one short", "torch's", "drop_last", "sampler"],
)
def test_the_size_of_every_batch_is_known_without_looking_at_it(loader):
    sizes = [len(labels) for _, labels in loader]

    assert [size_of_batch(loader, number) for number in range(1, len(sizes) + 1)] == sizes


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), batch_size=4),
        DataLoader(make_images(), batch_size=None),
        DataLoader(make_images(), batch_sampler=BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)),
        [torch.zeros(4), torch.zeros(2)],
        iter([]),
        None,
    ],
    ids=["iterable dataset", "single samples", "batch sampler", "list", "iterator", "none"],
)
def test_a_size_that_cannot_be_known_is_not_guessed(loader):
    assert size_of_batch(loader, 1) is None


def test_a_batch_after_the_last_has_no_size():
    loader = DataLoader(TensorDataset(torch.zeros(8)), batch_size=4)

    assert [size_of_batch(loader, number) for number in (1, 2, 3)] == [4, 4, None]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_on_cuda_are_those_of_the_cpu(num_workers):
    dataset = make_images()

    found = list(TensorLoader(dataset, 4, device="cuda", num_workers=num_workers))

    for (images, labels), expected in zip(found, TensorLoader(dataset, 4), strict=True):
        assert (images.device.type, labels.device.type) == ("cuda", "cuda")
        assert torch.equal(images.to(CPU), expected[0])
        assert torch.equal(labels.to(CPU), expected[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_orders_of_epochs_are_those_of_torchs_loader_with_the_same_seed(num_workers):
    dataset = ImageTensors(torch.zeros(10, 1, 2, 2), torch.arange(10))
    generator = torch.Generator().manual_seed(5)

    ours = TensorLoader(dataset, 4, seed=5, num_workers=num_workers)
    torchs = DataLoader(dataset, 4, shuffle=True, generator=generator, num_workers=num_workers)

    assert two_orders(ours) == two_orders(torchs)


def two_orders(loader):
    return [labels.tolist() for _ in range(2) for _, labels in loader]
