"""What each rank executes in test_ranks.py: under torchrun, or forked from a process that has torch already.

`ranks.py case folder` is one rank.
"""

import json
import math
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # here, so that no rank has to import it, nor pandas and TensorBoard
import torch.utils.tensorboard
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from runmanager import RunBuilder, RunManager, load_runs, run_grid
from tests.border.work import learn

INPUTS = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
SAMPLES = TensorDataset(INPUTS, (INPUTS.sum(dim=1) > 0).long())
RUNS = RunBuilder.get_runs({"lr": [0.5], "device": ["cpu"]})
WITH_CHANCE = ("chance", "killed", "continued")


def rank_of() -> tuple[int, int]:
    """Return the rank of this process, and the number of ranks, as torchrun says them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def train(run: Any, manager: RunManager, case: str = "plain") -> None:
    rank, num_ranks = rank_of()
    if num_ranks > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(7)  # the same weights on every rank
    dropout = nn.Dropout(0.25 if case in WITH_CHANCE else 0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), dropout, nn.Linear(8, 2))
    model: nn.Module = DistributedDataParallel(network) if num_ranks > 1 else network
    torch.manual_seed(100 + rank)
    random.seed(rank)
    sampler: Any = DistributedSampler(SAMPLES, shuffle=False) if num_ranks > 1 else None
    loader = DataLoader(SAMPLES, batch_size=12 // num_ranks, sampler=sampler)
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    draws = torch.Generator().manual_seed(rank)
    parts = {"network": network, "optimizer": optimizer, "draws": draws}
    with manager.run(run, network, loader):
        manager.evaluate(loader, "start")
        for epoch in manager.epochs(3, checkpoint=parts, keep="best:loss"):
            for step, (inputs, labels) in enumerate(manager.batches(), 1):
                preds, loss = learn(model, optimizer, inputs, labels)
                misfortune(case, (epoch, step, rank))
                bad = case == "nan" and (epoch, step, rank) == (2, 3, 1)
                manager.track_loss(loss * math.nan if bad else loss, inputs)
                manager.track_num_correct(preds, labels)
                manager.log(step_rank=rank, step_loss=loss)
            manager.evaluate(loader)
            chance = torch.rand((), generator=draws) + torch.rand(()) + random.random()  # noqa: S311
            manager.track(chance=chance if case in WITH_CHANCE else 0.0)
        manager.artifact(f"of rank {rank}\n", "notes.txt")
        if (case, rank) == ("plain", 0):
            os.ftruncate = lambda *_: time.sleep(0.2)  # before a line: the other ranks wait for it


def misfortune(case: str, where: tuple[int, int, int]) -> None:
    if case == "killed" and where[:2] == (2, 3):
        os.kill(os.getpid(), 9)
    if case == "failed" and where == (2, 3, 1):
        raise ValueError("rank 1 has had enough")


def execute(case: str, folder: Path) -> None:
    """Execute a case as one rank, and leave in the folder what it knows and what it wrote."""
    rank, written = rank_of()[0], watch(folder)
    if case == "grid":
        outcome = run_grid(RUNS, train, experiment="exp", root=folder, executor="inline", tensorboard=False)
        known: dict[str, Any] = {"statuses": [str(ended.status) for _, ended in outcome.outcomes]}
        known["results"] = outcome.results.to_dict(orient="records")
    else:
        manager = RunManager("exp", folder, display=True, tensorboard=case == "plain")
        for run in manager.remaining(RUNS):
            train(run, manager, case)
        known = {"statuses": load_runs(folder)["status"].tolist()}
        known |= {"left": list(manager.remaining(RUNS)), "results": manager.results.to_dict(orient="records")}
        known |= {"rows": manager.run_data, "outcome": str(manager.outcome)}
        manager.save(folder / "saved")
    known["written"] = sorted(set(written))
    (folder / f"rank{rank}.json").write_text(json.dumps(known))


def watch(folder: Path) -> list[str]:
    """Note from now on what this process changes in a folder."""
    written: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        changes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime")
        if event == "open" and isinstance(args[2], int):
            changes = bool(args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if changes and str(args[0]).startswith(str(folder)):
            written.append(f"{event} {Path(str(args[0])).name}")

    sys.addaudithook(hook)
    return written


def fork(num_ranks: int, case: str, folder: Path) -> list[int]:
    """Fork the ranks of a case and return their exit codes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            if num_ranks > 1:
                group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in group.items()}, MASTER_ADDR="127.0.0.1")
            code = 1
            try:
                execute(case, folder)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    execute(sys.argv[1], Path(sys.argv[2]))
