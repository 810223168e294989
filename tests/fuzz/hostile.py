# ruff: noqa: E501, PLR0911 - tables of odd things
"""Files as somebody makes them who knows the formats and their checksums, and means no good."""

import copy
import json
import os
import random
import struct
import zlib
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.border.events import event_records, framed
from tests.border.reading import to_line

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e"
NAMES = [
    "run", "status", "experiment", "epoch", "epochs", "loss", "accuracy", "test_accuracy", "jobs", "error", "mixed",
    "attempts", "parameters", "hyperparameters", "peak memory", "epoch duration", "run duration", "best accuracy",
    "best loss", "lr", "device", "seed", "lr (hyperparameter)", "run (hyperparameter)", "index", "level_0", "0", "",
    " ", "__class__", "attrs", "n", "mean", "axis", "value", "x" * 3000, ESCAPES, "a\nb", "a\0b", "\ud800", "=1+1",
    "<script>alert(1)</script>", "{{ 7 * 7 }}", "{%", "é", "名", "😀", "$float", "none", "nan", "cpu", "cpu / cuda",
    "best loss", "kept loss", "kept accuracy", "kept test_accuracy", "best ", "kept ", "max:loss", "loss n", "loss mean",
    "loss low", "test_accuracy mean", "goal", "goals", "kept by", "repeats", "all repeats", "failed repeats",
    "95 % interval", "overall", "differences", "left out", "compared", "cold start", "threads", "val_loss", "reward",
]  # fmt: skip
NUMBERS = [
    0, -1, 1, 2, 3, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, -(10**400), 10**4000,
    0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, 1e17, 253402300800.0, True, False,
]  # fmt: skip
GOALS = [
    *(f"{which}{name}" for which in ("max:", "min:", "best:", "", "max: ") for name in NAMES),
    "max", "min:", ":", "::", "max:max:loss", "min:loss ", "last", "MAX:loss", "max:accuracy\n",
]  # fmt: skip
TEXTS = [*NAMES, "inf", "-inf", "1e999", "completed", "failed", "running", "stale", "pending", "0" * 5000]


def nested(depth: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"list": [value], "object": {"a": value}, "tuple": {"$tuple": [value]}}.get(
            kind, {"$dict": [["a", value]]}
        )
    return value


def odd_value(dice: random.Random) -> Any:
    kind = dice.randrange(12)
    if kind < 4:
        return dice.choice(NUMBERS)
    if kind < 7:
        return dice.choice(TEXTS)
    if kind == 7:
        return nested(dice.choice([2, 49, 51, 60, 300, 450]), dice.choice(["list", "object", "tuple", "dict"]))
    if kind == 8:
        return [odd_value(dice) for _ in range(dice.randrange(4))]
    if kind == 9:
        return {dice.choice(NAMES): odd_value(dice) for _ in range(dice.randrange(4))}
    if kind == 10:
        return {
            dice.choice(["$float", "$tuple", "$dict", "$device", "$dtype", "$other"]):
            dice.choice([
                "nan", "inf", "-inf", "cuda:0", "cuda:999999", "torch.float32", "torch.nn", "nn", 1, None, [], [1, 1],
                [[1]], [["a", 1]], [[["a"], 1]], [["a"]], [{"$float": "nan"}, {"$float": "nan"}], "\ud800",
                [[{"$tuple": [1]}, 2]],
            ])
        }  # fmt: skip
    return None


def change(content: Any, dice: random.Random) -> Any:
    """Change something somewhere in a JSON document."""
    content = copy.deepcopy(content)
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        spot: Any = content
        while isinstance(spot, (dict, list)) and spot:
            keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
            key = dice.choice(keys)
            if not isinstance(spot[key], (dict, list)) or not spot[key] or dice.random() < 0.3:
                _change_entry(spot, key, dice)
                break
            spot = spot[key]
    return content


def _change_entry(spot: Any, key: Any, dice: random.Random) -> None:
    what = dice.random()
    if what < 0.15:
        del spot[key]
    elif what < 0.35 and isinstance(spot, dict):
        spot[dice.choice(NAMES)] = spot.pop(key)
    elif what < 0.5 and isinstance(spot, dict):
        spot[dice.choice(NAMES)] = odd_value(dice)
    else:
        spot[key] = odd_value(dice)


def design(dice: random.Random) -> dict[str, Any]:
    """Say what decides in an experiment as nobody means it: what grid.json holds beside its runs."""
    names = [*NAMES, *["lr", "seed", "device", "seed", "lr"] * 9]
    axes = [dice.choice(names) for _ in range(dice.choice([0, 1, 1, 2, 3]))]
    goal: Any = dice.choice(
        ["max:loss", "min:loss", "max:test_accuracy", "min:epoch duration", dice.choice(GOALS)]
    )
    document = {"goal": goal, "repeats": axes}
    for name in document:
        if dice.random() < 0.2:
            document[name] = odd_value(dice)
    return {name: value for name, value in document.items() if dice.random() < 0.8}


def journal(lines: list[dict[str, Any]], dice: random.Random) -> bytes:
    """Change lines of a journal; every line, and often the end's checksum of all, is right."""
    if dice.random() < 0.2:
        lines[0]["keep"] = dice.choice([*GOALS, *["max:loss", "min:loss", "max:test_accuracy"] * 30])
    for _ in range(dice.choice([1, 1, 2, 4])):
        kind, index = dice.random(), dice.randrange(len(lines))
        if kind < 0.8:
            lines[index] = change(lines[index], dice)
        elif kind < 0.9:
            lines.insert(dice.randrange(len(lines) + 1), copy.deepcopy(lines[index]))
        else:
            dice.shuffle(lines)
    if dice.random() < 0.005:
        epochs = [
            {**lines[-1], "type": "epoch", "epoch": n, "metrics": {f"m{n}": 1.0}, "times": {}}
            for n in range(1, 4001)
        ]
        lines[1:1] = epochs
    content = b"".join(map(to_line, lines[:-1]))
    if "whole" in lines[-1] and dice.random() < 0.7:
        lines[-1]["whole"] = f"{zlib.crc32(content):08x}"
    return content + to_line(lines[-1])


def entry(described: Any, dice: random.Random) -> Any:
    """Change how a run is described, and give it the right checksum."""
    changed = change(described, dice)
    if dice.random() < 0.9 and "id" in changed and "params" in changed:
        changed["crc"] = entry_checksum(changed)
    return changed


def entry_checksum(described: dict[str, Any]) -> str:
    document = json.dumps([described["id"], described["params"]], sort_keys=True)
    return f"{zlib.crc32(document.encode()):08x}"


def described(document: dict[str, Any], dice: random.Random) -> bytes:
    """Change run.json, or the entries of grid.json."""
    if "runs" in document and dice.random() < 0.8:
        runs = [entry(run, dice) if dice.random() < 0.3 else run for run in document["runs"]]
        return json.dumps({**document, "runs": runs}).encode()
    if "runs" in document:
        return json.dumps(change(document, dice)).encode()
    return json.dumps(entry(document, dice)).encode()


def events(content: bytes, dice: random.Random) -> bytes:
    """Change records of an event file, and give each the right checksums."""
    records = list(event_records(content))
    for _ in range(dice.choice([1, 1, 2, 5])):
        index = dice.randrange(len(records))
        records[index : index + dice.randrange(2)] = [_event(records[index], dice)]
    return b"".join(map(framed, records))


def _event(body: bytes, dice: random.Random) -> bytes:
    kind = dice.randrange(6)
    if kind == 0:
        return dice.randbytes(dice.randrange(60))
    if kind == 1 and body:
        position = dice.randrange(len(body))
        return body[:position] + dice.randbytes(1) + body[position + 1 :]
    step = dice.choice([0, 1, 2, -1, 2**62, -(2**63), 2**63 - 1])
    if kind == 2:
        status = dice.choice([SessionLog.START, SessionLog.STOP, SessionLog.CHECKPOINT])
        return bytes(Event(step=step, session_log=SessionLog(status=status)).SerializeToString())
    names = [name for name in NAMES if name != "\ud800"]
    value = Summary.Value(tag=dice.choice([*names, "loss/train", "accuracy/test", "hparams/epoch"]))
    if kind == 3:
        value.simple_value = dice.choice([0.0, float("nan"), float("inf"), 1e38])
    elif kind == 4:
        value.metadata.plugin_data.plugin_name = dice.choice(["scalars", "hparams", "text", "\x1b"])
        value.tensor.dtype = dice.randrange(25)
        for _ in range(dice.randrange(3)):
            value.tensor.tensor_shape.dim.add().size = dice.choice([0, 1, 2, -1, 10**5, 10**10, 2**62])
        value.tensor.float_val.extend([1.0] * dice.randrange(2))
        value.tensor.tensor_content = dice.randbytes(dice.choice([0, 1, 4, 8]))
        value.tensor.string_val.append(b"text")
    else:
        value.tag = dice.choice([value.tag, "_hparams_/session_start_info", "_hparams_/session_end_info"])
        value.metadata.plugin_data.plugin_name = "hparams"
        content = _session(names, dice) if dice.random() < 0.8 else dice.randbytes(9)
        value.metadata.plugin_data.content = content
    return bytes(Event(step=step, summary=Summary(value=[value])).SerializeToString())


def _session(names: list[str], dice: random.Random) -> bytes:
    data = HParamsPluginData(version=dice.choice([0, 0, 1, 7]))
    info = data.session_start_info
    info.group_name = dice.choice(["", "a/b", "\x1b"])
    info.start_time_secs = dice.choice([0.0, -1e300, float("nan")])
    for name in dice.sample(names, 3):
        kind: Any = dice.choice([1.0, 1e308, float("nan"), float("inf"), ESCAPES, True, None, []])
        if kind == []:
            info.hparams[name].list_value.values.add().number_value = 1.0
        elif kind is not None:
            field = {bool: "bool_value", str: "string_value", float: "number_value"}[type(kind)]
            setattr(info.hparams[name], field, kind)
    return bytes(data.SerializeToString())


def link(path: Path, dice: random.Random) -> None:
    """Put a link, a folder or a pipe where a file was."""
    path.unlink()
    kind = dice.randrange(4)
    if kind == 0:
        path.symlink_to("/etc/passwd")
    elif kind == 1:
        path.symlink_to(path.name)
    elif kind == 2:
        path.mkdir()
    else:
        os.mkfifo(path)


def sparse_header(content: bytes) -> bytes:
    """Append a record of an event file whose length is almost 2^64."""
    length = struct.pack("<Q", 2**64 - 8)
    return content + length + framed(length)[8:12]
