"""The recorded step of the benchmarks: buffers, sums, and what it does where nothing can be recorded."""

import pytest
import torch
from torch import nn

from benchmarks.captured import CapturedStep, first_losses, graph, refuse
from runmanager.training.loaders import ImageTensors

SIZE = 130


def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (1000, 1, 12, 12), dtype=torch.uint8, generator=generator)
    return ImageTensors(images, torch.arange(1000) % 10)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(256, 10)
    )


def broken(step):
    """Fail in the middle of a recording, as a step does that waits for the device."""
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


class Recorder:
    """Repeats a step as a graph does: with the buffers that it was recorded with, whatever batch comes."""

    def __init__(self):
        self.repeats = 0

    def __call__(self, step):
        def repeat():
            self.repeats += 1
            step()

        return repeat


def trained(record, epochs=2, batch_size=50):
    """Train on batches of which the last is shorter; return the step and the sums of each epoch."""
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True, capturable=True)
    step, sums = CapturedStep(model, optimizer, data(), batch_size, record), []
    for _ in range(epochs):
        for index in torch.randperm(SIZE).split(batch_size):
            step(index)
        sums.append((float(step.loss_sum), int(step.num_correct)))
    return step, sums, [*model.state_dict().values(), torch.get_rng_state()]


def eager(epochs=2, batch_size=50):
    """Train the same in a plain loop, with another optimizer's options."""
    torch.manual_seed(1)
    model, samples, losses, correct, sums = network(), data(), 0.0, 0, []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    for _ in range(epochs):
        for index in torch.randperm(SIZE).split(batch_size):
            preds = model(samples.images[index].float() / 255)
            loss = nn.functional.cross_entropy(preds, samples.labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += loss.item() * len(index)
            correct += int((preds.argmax(1) == samples.labels[index]).sum())
        sums.append((losses, correct))
    return sums, [*model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (graph, "the device is cpu"),
        (broken, "the step cannot be recorded: operation not permitted when stream is capturing"),
        (Recorder(), ""),
    ],
    ids=["no GPU", "broken", "recorded"],
)
def test_steps_are_those_of_a_plain_loop_to_the_last_bit(record, reason):
    sums, state = eager()

    step, of_step, state_of_step = trained(record)

    assert step.reason == reason
    assert [correct for _, correct in of_step] == [correct for _, correct in sums]
    assert [loss for loss, _ in of_step] == pytest.approx([loss for loss, _ in sums], rel=1e-6)
    assert all(map(torch.equal, state_of_step, state))


def test_only_batches_of_the_recorded_size_are_repeated():
    recorder = Recorder()

    trained(recorder)

    assert recorder.repeats == 4  # of 50, 50 and 30 samples in two epochs


def test_a_recorded_step_reads_the_batch_from_its_buffer():
    read = []

    def record(step):
        index = step.args[0]
        return lambda: read.append((index.data_ptr(), index.tolist()))

    step, _, _ = trained(record, epochs=0)
    for index in (torch.arange(50), torch.arange(50, 100)):
        step(index)

    assert read == [(step.index.data_ptr(), list(range(50))), (step.index.data_ptr(), list(range(50, 100)))]


def test_the_state_of_a_trained_optimizer_survives_the_recording():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True, capturable=True)
    model(torch.ones(2, 1, 12, 12)).sum().backward()
    optimizer.step()
    before = [value.clone() for state in optimizer.state.values() for value in state.values()]

    CapturedStep(model, optimizer, data(), 50, Recorder())

    after = [value for state in optimizer.state.values() for value in state.values()]
    assert all(map(torch.equal, before, after))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_first_losses_are_those_of_the_eager_step():
    losses, reason = first_losses(network, data(), Recorder())

    assert (losses, reason) == (first_losses(network, data(), refuse)[0], "")
    assert len(set(losses)) == 10
