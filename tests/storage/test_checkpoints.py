import builtins
import hashlib
import io
import os
import pickle
import pickletools
import random
import struct
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim import lr_scheduler

from runmanager.core import checkpoints, files
from runmanager.core.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from runmanager.core.outcome import EpochRecord
from runmanager.devices import torch_devices
from runmanager.errors import CheckpointError, StorageError

CPU = torch.device("cpu")
ID = "a1b2c3d4"
NEWEST, BEFORE = "checkpoint.pt", "checkpoint.prev.pt"


def test_the_record_in_a_checkpoint_is_whole():
    newest = Checkpoint(ID, EpochRecord(1, {"loss": 0.5}, {}, cold=True, steps=7), {}, {})

    assert checkpoints._from_bytes(checkpoints._to_bytes(newest)).record == newest.record


def checkpoint(epoch=1, states=None, id_=ID):
    record = EpochRecord(epoch, {"loss": 1 / (epoch + 2), "run duration": 1e-300}, {"phase_eval_s": 0.1})
    return Checkpoint(id_, record, {"network": torch.arange(40.0) * epoch} if states is None else states, {})


def save(folder, *epochs):
    for epoch in epochs:
        save_checkpoint(folder, checkpoint(epoch), verify=False)


def load(folder):
    """Load the checkpoint: its epoch, None without one, and what is said."""
    problems: list[str] = []
    found = load_checkpoint(folder, ID, problems)
    return found and found.record.epoch, problems


def with_hash(body):
    return hashlib.sha256(body).digest() + body


def through_a_file(folder, name, part, other):
    """Give `other` the state of `part` by way of a checkpoint."""
    state = checkpoints.state_of(name, part)
    save_checkpoint(folder, checkpoint(states={name: state}), verify=True)
    found = load_checkpoint(folder, ID, [])
    assert found is not None
    checkpoints.restore(folder, {name: other}, found.states)
    return state, checkpoints.state_of(name, other)


def same(one, other):
    """Whether two states are the same to the last bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def networks():
    torch.manual_seed(0)
    trained = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.PReLU())
    trained(torch.randn(8, 4)).sum().backward()
    return trained, nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.PReLU())


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, betas=(0.8, 0.9)),
    "Adagrad": optim.Adagrad,
    "RMSprop": lambda p: optim.RMSprop(p, centered=True, momentum=0.5),
    "Adadelta": optim.Adadelta,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Rprop": optim.Rprop,
    "ASGD": optim.ASGD,
    "LBFGS": lambda p: optim.LBFGS(p, max_iter=2),
}
SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 2, 2]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def test_a_network_gets_its_weights_and_buffers_back(tmp_path):
    trained, fresh = networks()

    state, given_back = through_a_file(tmp_path, "network", trained, fresh)

    assert same(state, given_back)
    assert list(given_back)[-1] == "2.weight"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_gets_its_state_back(tmp_path, name):
    trained, fresh = networks()
    optimizer = OPTIMIZERS[name](trained.parameters())
    for _ in range(2):
        optimizer.step(lambda: trained(torch.ones(2, 4)).sum())

    state, given_back = through_a_file(tmp_path, name, optimizer, OPTIMIZERS[name](fresh.parameters()))

    assert state["state"]
    assert same(state, given_back)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_gets_its_state_back(tmp_path, name):
    trained, fresh = networks()
    optimizer = optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    for loss in (0.5, 0.6, 0.7):
        optimizer.step()
        arguments: list[Any] = [loss] if name == "ReduceLROnPlateau" else []
        scheduler.step(*arguments)
    other = SCHEDULERS[name](optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9))

    state, given_back = through_a_file(tmp_path, name, scheduler, other)

    assert same(state, given_back)
    assert state != SCHEDULERS[name](optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)).state_dict()


def test_a_gradient_scaler_gets_its_state_back(tmp_path):
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1) for scale in (8.0, 2.0)]
    parameter = nn.Parameter(torch.ones(2))
    optimizer = optim.SGD([parameter], lr=0.1)
    scalers[0].scale(parameter.sum()).backward()
    scalers[0].step(optimizer)
    scalers[0].update()

    state, given_back = through_a_file(tmp_path, "scaler", scalers[0], scalers[1])

    assert same(state, given_back)
    assert given_back["scale"] == 16.0


@given(st.integers(0, 2**63 - 1), st.integers(0, 1300))
@settings(max_examples=25)
def test_a_generator_goes_on_where_it_was(tmp_path_factory, seed, drawn):
    generator = torch.Generator().manual_seed(seed)
    torch.rand(drawn, generator=generator)
    other = torch.Generator()

    through_a_file(tmp_path_factory.getbasetemp(), "generator", generator, other)

    assert torch.equal(torch.randn(99, generator=generator), torch.randn(99, generator=other))


@given(st.integers(0, 2**32 - 1), st.integers(0, 700), st.booleans())
@settings(max_examples=25)
def test_all_random_states_go_on_where_they_were(tmp_path_factory, seed, drawn, is_odd):
    folder = tmp_path_factory.getbasetemp()

    def draw(count):
        numbers = [random.gauss(0, 1) for _ in range(count)]
        arrays = np.random.standard_normal(count), torch.randn(count), torch.randperm(7)  # noqa: NPY002
        return numbers, *(array.tolist() for array in arrays)

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    draw(drawn * 2 + is_odd)  # an odd number leaves a second Gaussian waiting
    kept = Checkpoint(ID, EpochRecord(1, {}), {}, torch_devices.random_states(CPU))
    save_checkpoint(folder, kept, verify=True)
    expected = draw(5)

    draw(3)
    found = load_checkpoint(folder, ID, [])
    assert found is not None
    torch_devices.restore_random(found.random, CPU)

    assert draw(5) == expected


RECORDS = st.builds(
    EpochRecord,
    st.integers(1, 10**6),
    st.dictionaries(st.text(), st.floats(allow_nan=False)),
    st.dictionaries(st.text(), st.floats(allow_nan=False)),
)
STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(RECORDS, st.dictionaries(st.text(), STATES))
def test_plain_states_and_the_row_come_back_as_they_were(tmp_path_factory, record, states):
    folder = tmp_path_factory.getbasetemp()
    written = Checkpoint(ID, record, states, {})

    save_checkpoint(folder, written, verify=True)

    assert load_checkpoint(folder, ID, []) == written


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int8, torch.uint8, torch.bool],
    ids=str,
)
def test_tensors_of_every_kind_come_back_to_the_bit(tmp_path, dtype):
    tensor = torch.tensor([[0, 1, 3], [7, 2, 100]]).to(dtype)
    states = {"plain": tensor, "view": tensor.t(), "single": tensor[0, 0], "empty": tensor[:0]}

    save_checkpoint(tmp_path, checkpoint(states=states), verify=True)

    found = load_checkpoint(tmp_path, ID, [])
    assert found is not None
    assert same(states, dict(found.states))


def test_two_generations_are_kept(tmp_path):
    save(tmp_path, 1, 2, 3)

    newest = load(tmp_path)
    (tmp_path / NEWEST).unlink()
    before = load(tmp_path)
    (tmp_path / BEFORE).unlink()
    none = load(tmp_path)

    assert (newest, before, none) == ((3, []), (2, []), (None, []))
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_are_removed_are_gone(tmp_path):
    save(tmp_path, 1, 2)

    for _ in range(2):
        checkpoints.remove_checkpoint_files(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_set_aside_is_not_loaded(tmp_path):
    save(tmp_path, 1, 2)

    for _ in range(2):
        checkpoints.set_aside(tmp_path, 4)

    assert load(tmp_path) == (None, [])
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-4.checkpoint.pt"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_ones_before(tmp_path, monkeypatch):
    def fail(*_arguments):
        raise OSError(28, "No space left on device")

    save(tmp_path, 1, 2)
    monkeypatch.setattr(files, "_write_all", fail)
    with pytest.raises(StorageError):
        save(tmp_path, 3)

    assert load(tmp_path) == (2, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEFORE, NEWEST]


def damaged_bytes(content):
    """Damage one byte in 200 places: all of the hash, the zip's header and end, and evenly in between."""
    ends = [*range(40), *range(len(content) - 30, len(content))]
    between = range(40, len(content) - 30, (len(content) - 70) // 129)
    for place in (*ends, *between):
        for mask in (0x01, 0x80, 0xFF):
            yield content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :]


def truncations(content):
    lengths = random.Random(0)  # noqa: S311 - reproducible damage
    yield from (content[: lengths.randrange(len(content))] for _ in range(300))


def longer_ones(content):
    yield content + b"\0"
    yield content * 2
    yield content[:32] + b"\n" + content[32:]


def lost_blocks(content):
    for start in range(0, len(content), 4096):
        zeros = bytes(len(content[start : start + 4096]))
        yield content[:start] + zeros + content[start + 4096 :]
    yield bytes(len(content))


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("damages", [damaged_bytes, truncations, longer_ones, lost_blocks])
def test_a_damaged_checkpoint_is_never_accepted_and_the_one_before_is_used(tmp_path, damages):
    states = {"network": torch.arange(3000.0), "optimizer": {"lr": 0.1}}
    for epoch in (1, 2):
        save_checkpoint(tmp_path, checkpoint(epoch, states), verify=False)
    path = tmp_path / NEWEST

    found = []
    for content in damages(path.read_bytes()):
        path.write_bytes(content)
        found.append(load(tmp_path))

    assert found == [(1, [f"{path} is not used (its checksum differs: it is damaged)"])] * len(found)
    assert len(found) >= {damaged_bytes: 600, truncations: 300, longer_ones: 3, lost_blocks: 4}[damages]


def test_where_both_are_damaged_both_are_named(tmp_path):
    save(tmp_path, 1, 2)
    for name in (NEWEST, BEFORE):
        (tmp_path / name).write_bytes(b"")

    epoch, problems = load(tmp_path)

    assert epoch is None
    assert [problem.partition(" is not used")[0] for problem in problems] == [
        str(tmp_path / NEWEST), str(tmp_path / BEFORE),
    ]  # fmt: skip


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    save(tmp_path, 1, 2)
    save_checkpoint(tmp_path, checkpoint(7, id_="another"), verify=False)

    assert load(tmp_path) == (2, [f"{tmp_path / NEWEST} is not used (it belongs to another run)"])


def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr(checkpoints, "VERSION", 2)
    save(tmp_path, 2)
    monkeypatch.undo()

    problem = "it is of version 2, this is version 1"
    assert load(tmp_path) == (1, [f"{tmp_path / NEWEST} is not used ({problem})"])


class Calls:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def writes(canary):
    """Make the source of a program that writes the canary."""
    return f"open({str(canary)!r}, 'w').close()"


def pickled(content):
    return pickle.dumps(content, protocol=2)


def saved(content, **options):
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(content):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def calls(module, name, argument):
    """Write a pickle that looks a function up by GLOBAL and calls it with a text."""
    text = argument.encode()
    return (
        b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"X" + struct.pack("<I", len(text)) + text + b"\x85R."
    )


def in_a_checkpoint(bomb):
    return {"v": 1, "id": ID, "record": (1, {}, {}), "states": {"network": bomb}, "random": {}}


def hostile(canary):
    """Make files that execute something, or exhaust something, if they are believed."""
    shell, program = f"touch {canary}", writes(canary)
    bombs = {
        "os.system": Calls(os.system, shell),
        "os.popen": Calls(os.popen, shell),
        "open": Calls(open, str(canary), "w"),
        "exec": Calls(exec, program),
        "eval": Calls(eval, program),
        "getattr": Calls(getattr, Calls(__import__, "os"), "system"),
        "torch.load": Calls(partial(torch.load, weights_only=False), str(canary.with_name("bomb.pkl"))),
        "torch.hub.load": Calls(torch.hub.load, str(canary.parent), "bomb"),
        "pickle.loads": Calls(pickle.loads, pickled(Calls(os.system, shell))),
        "apply": Calls(map, Calls(getattr, builtins, "exec"), [program]),
    }
    files = {f"saved {name}": saved(in_a_checkpoint(bomb)) for name, bomb in bombs.items() if name != "apply"}
    files |= {
        f"legacy {name}": saved(in_a_checkpoint(bombs[name]), _use_new_zipfile_serialization=False)
        for name in ("os.system", "exec", "eval")
    }
    files |= {f"pickle {name}": pickled(bombs[name]) for name in ("os.system", "open", "exec", "pickle.loads")}
    files |= {
        f"global {module}.{name}": calls(module, name, argument)
        for module, name, argument in [
            ("builtins", "eval", program),
            ("builtins", "exec", program),
            ("__builtin__", "eval", program),
            ("posix", "system", shell),
            ("nt", "system", shell),
            ("subprocess", "getoutput", shell),
            ("torch.hub", "_load_local", str(canary.parent)),
            ("torch.serialization", "os.system", shell),
            ("numpy.f2py.diagnose", "os.system", shell),
        ]
    }
    bomb = pickled(bombs["os.system"])
    files |= {
        "tar": tarred(bomb),
        "zip with nested paths": zipped(**{"a/../../data.pkl": bomb, "archive/data.pkl": bomb, "../x": b"x"}),
        "zip of TorchScript": zipped(**{"x/constants.pkl": bomb, "x/data.pkl": bomb, "x/code/a.py": b"1/0"}),
        "zip without members": zipped(),
        "truncated zip": saved(in_a_checkpoint(1))[:-90],
        "huge text": b"\x80\x02\x8d" + struct.pack("<Q", 2**62) + b"x.",
        "huge bytes": b"\x80\x03\x8e" + struct.pack("<Q", 2**40) + b"x.",
        "huge tensor": huge_tensor(),
        "compressed": compressed(saved(in_a_checkpoint(torch.zeros(2**20)))),
        "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "text": b"#!/bin/sh\n" + shell.encode(),
        "empty": b"",
        "hash alone": b"\0",
        "a list": saved([1, 2]),
        "a tensor": saved(torch.ones(3)),
        "no record": saved({**in_a_checkpoint(1), "record": None}),
        "no epoch": saved({**in_a_checkpoint(1), "record": ("one", {}, {})}),
        "an id that is a tensor": saved({**in_a_checkpoint(1), "id": torch.ones(3)}),
    }
    return files


def compressed(content):
    """Make a file of a few KB of what has 4 MB, as it could be of a few MB."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as archive,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as smaller,
    ):
        for name in archive.namelist():
            smaller.writestr(name, archive.read(name))
    return file.getvalue()


def huge_tensor():
    """Save a tensor that says it has 2**60 numbers."""
    content = saved(in_a_checkpoint(torch.ones(7)))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in members if name.endswith("data.pkl"))
    small, large = b"K\x07", b"\x8a\x08" + struct.pack("<Q", 2**60)
    assert small in members[name]
    pickletools.optimize(members[name])  # it is a pickle
    return zipped(**{**members, name: members[name].replace(small, large)})


def test_nothing_in_a_hostile_file_is_executed(tmp_path, recwarn):
    canary = tmp_path / "canary"
    canary.with_name("bomb.pkl").write_bytes(pickled(Calls(os.system, f"touch {canary}")))
    (tmp_path / "hubconf.py").write_text(f"def bomb():\n    {writes(canary)}\n{writes(canary)}\n")
    run = tmp_path / "run"
    run.mkdir()

    files = hostile(canary)
    found = {}
    for name, body in files.items():
        for kind, content in (("bare", body), ("hashed", with_hash(body))):
            for generation in (NEWEST, BEFORE):
                (run / generation).write_bytes(content)
            found[f"{name}, {kind}"] = load(run)

    assert len(files) >= 40
    assert not canary.exists()
    assert {name: epoch for name, (epoch, _) in found.items() if epoch is not None} == {}
    assert {name: problems for name, (_, problems) in found.items() if len(problems) != 2} == {}
    said = {name: problems[0].partition(" is not used ")[2] for name, (_, problems) in found.items()}
    assert "GLOBAL posix.system" in said["saved os.system, hashed"]
    assert [name for name, text in said.items() if not text.isprintable() or "weights_only" in text] == []
    assert len(recwarn) == 0


def test_a_hostile_file_would_have_been_executed_without_care(tmp_path):
    canary = tmp_path / "canary"
    body = hostile(canary)["pickle os.system"]

    pickle.loads(body)

    assert canary.exists()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_not_read(tmp_path, make):
    save(tmp_path, 1, 2)
    (tmp_path / NEWEST).unlink()
    make(tmp_path / NEWEST)

    epoch, problems = load(tmp_path)

    assert epoch == 1
    assert problems == [f"{tmp_path / NEWEST} is not used (its checksum differs: it is damaged)"]


class Unsafe:
    pass


@pytest.mark.parametrize(
    "value",
    [Unsafe(), Unsafe, len, np.float64(1).__class__, {"deep": [(Unsafe(),)]}],
    ids=lambda v: type(v).__name__,
)
def test_a_state_that_could_not_be_loaded_safely_is_refused_at_the_first_save(tmp_path, value):
    with pytest.raises(CheckpointError, match="a state holds objects that could not be loaded without exec"):
        save_checkpoint(tmp_path, checkpoint(states={"scheduler": {"value": value}}), verify=True)

    assert list(tmp_path.iterdir()) == []


def test_what_has_no_state_is_refused():
    class Half:
        def state_dict(self):
            return {}

    with pytest.raises(CheckpointError, match=r"checkpoint\['lr'\] must have state_dict\(\) .* got float"):
        checkpoints.state_of("lr", 0.1)
    with pytest.raises(CheckpointError, match="got Half"):
        checkpoints.state_of("half", Half())


@pytest.mark.parametrize(
    ("part", "state"),
    [(nn.Linear(2, 2), nn.Linear(3, 2).state_dict()), (torch.Generator(), torch.ones(3)), (nn.Linear(2, 2), 5)],
    ids=["shape", "generator", "no mapping"],
)
def test_a_state_that_does_not_fit_says_so(part, state):
    with pytest.raises(CheckpointError, match="the checkpoint's state of 'part' does not fit"):
        checkpoints.restore(Path("runs/e/1"), {"part": part}, {"part": state})


def test_weights_are_a_plain_file_of_torch(tmp_path):
    trained, fresh = networks()

    checkpoints.save_weights(tmp_path, trained)

    state = torch.load(tmp_path / "weights.pt", weights_only=True)
    fresh.load_state_dict(state)
    assert same(fresh.state_dict(), trained.state_dict())


def test_what_the_system_cannot_read_is_no_damage(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(116, "Stale file handle")))

    with pytest.raises(StorageError, match="Stale file handle"):
        load(tmp_path)

    assert (tmp_path / NEWEST).exists()


def test_the_second_generation_is_set_aside_if_the_first_is_damaged(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    assert load(tmp_path)[0] == 1

    checkpoints.set_aside(tmp_path, 4)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt-4.checkpoint.pt", "checkpoint.damaged"]
