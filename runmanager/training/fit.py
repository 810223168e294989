"""fit(): the standard classification loop, with reduced precision and micro-batches."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from runmanager.devices import ranks, torch_devices
from runmanager.errors import Problems, SettingError, is_count
from runmanager.grid import params_of
from runmanager.training.batch_size import Measure
from runmanager.training.evaluation import Loss
from runmanager.training.manager import RunManager
from runmanager.training.optimizer_step import PRECISIONS, Step, usable_precisions


def fit(
    run: Any,
    network: nn.Module,
    loader: Any,
    manager: RunManager,
    *,
    optimizer: Optimizer | Callable[[Iterator[nn.Parameter]], Optimizer],
    epochs: int,
    loss: Loss = functional.cross_entropy,
    test_loader: Iterable[Any] | None = None,
    precision: str = "fp32",
    micro_batch: int | str | None = None,
    batch_norm_per_piece: bool = False,
    memory_format: torch.memory_format | None = None,
    clip_grad_norm: float | None = None,
    scheduler: LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
    checkpoint_activations: bool = False,
    keep: str | None = None,
    batch_size: Measure | None = None,
) -> None:
    """Train a network on the run's device: one row per epoch, a checkpoint with each.

    In fp32 and without micro-batches the numbers are those of the plain loop with the same seed, on a cpu bit
    for bit. Nothing waits for the device within an epoch, except fp16 with an optimizer that is not fused.

    A batch that is cut into pieces gives the same step as the whole, up to rounding, if the loss is a mean over
    samples: not with class weights or ``ignore_index``. Dropout draws new numbers for each piece, and when a
    batch is repeated.

    Args:
        run: Its hyperparameters; without `device` it is executed where the network is.
        network: In the modes it is trained in.
        loader: Yields (inputs, labels).
        manager: Logs the run. A run that is open already is trained and stays open.
        optimizer: Or a function that makes one from the parameters, called when they are on their device.
        epochs: How many, those of earlier attempts included.
        loss: The mean over a batch, of the network's output and the labels.
        test_loader: Evaluated with every epoch: the columns `test_loss` and `test_accuracy`.
        precision: "fp32", or "bf16" or "fp16" by ``torch.autocast``; fp16 with a gradient scaler.
        micro_batch: The most samples that are computed at a time; their gradients are added up to the step of
            the whole batch. "auto" starts with whole batches and halves the piece when memory runs out; from
            then on its size is the column `micro_batch`, or `micro_batch_used` if that is a hyperparameter.
        batch_norm_per_piece: Accept that batch statistics are those of a piece.
        memory_format: Of the network and its inputs, as ``torch.channels_last``.
        clip_grad_norm: The largest norm of all gradients together.
        scheduler: Stepped after every epoch; or a function that makes one from the optimizer.
        checkpoint_activations: Keep no more than the inputs of the network's direct children for the backward
            pass, which computes the rest again: less memory, up to a third more time.
        keep: Which weights are kept in the run's folder, as in `RunManager.epochs`.
        batch_size: Called with (inputs, labels) of a batch, of a piece of one, or of `test_loader`; returns the
            number of samples that the loss is a mean over. None takes that of the manager, or else counts the
            labels.

    Raises:
        SettingError: The run cannot be trained with these settings; with all problems, and before anything is
            written.
        DeviceError: The run's device is not there.
        LifecycleError: Another run is open.
        StorageError: Something could not be written.

    Example:
        >>> loader = [(torch.ones(8, 4), torch.arange(8) % 3)] * 5
        >>> manager = RunManager("example", display=False)
        >>> fit({"lr": 0.1}, nn.Linear(4, 3), loader, manager, optimizer=torch.optim.SGD, epochs=2)
        >>> manager.results["epoch"].tolist()
        [1, 2]
    """
    params = params_of(run)
    is_open = manager._is_open  # noqa: SLF001 - fit() is a part of the manager's wing
    device = manager._device_of(params, network)  # noqa: SLF001 - as above
    _refuse(
        *_problems_of_run(manager, network, loader, is_open=is_open),
        *_problems_of_numbers(epochs, clip_grad_norm, batch_size),
        *_problems_of_precision(precision, device),
        *_problems_of_pieces(micro_batch, network, accepted=batch_norm_per_piece),
        *_problems_of_optimizer(optimizer, network),
        *_problems_of_scheduler(scheduler, optimizer),
        *_problems_of_activations(network, asked=checkpoint_activations),
    )
    if len(torch_devices.devices_of(network)) <= 1:  # as begin_run() does, but before there is an optimizer
        network.to(device)
    if memory_format is not None:
        network.to(memory_format=memory_format)
    # before the clock starts: a process's first optimizer imports for seconds
    optimizer = optimizer if isinstance(optimizer, Optimizer) else optimizer(network.parameters())
    scheduler = _scheduler_of(optimizer, scheduler)
    measure = batch_size or manager._batch_size  # noqa: SLF001 - as above
    step = Step(
        network, loss, optimizer, device, precision=precision, micro_batch=micro_batch,
        memory_format=memory_format, clip_grad_norm=clip_grad_norm,
        checkpoint_activations=checkpoint_activations, measure=measure,
    )  # fmt: skip
    parts = step.parts() | ({"scheduler": scheduler} if scheduler else {})
    column = "micro_batch" if "micro_batch" not in params else "micro_batch_used"
    counting = manager._counting(measure)  # noqa: SLF001 - as above
    with counting, nullcontext() if is_open else manager.run(run, network, loader):
        for _ in manager.epochs(epochs, checkpoint=parts, keep=keep):
            for inputs, labels in manager.batches():
                value, preds = step(inputs, labels)
                manager.track_loss(value, (inputs, labels) if measure else labels)
                if preds is not None:
                    manager.track_num_correct(preds, labels)
            if scheduler:
                scheduler.step()
            if step.reduced_to is not None:
                manager.track({column: step.reduced_to})
            if test_loader is not None:
                with step.autocast:
                    manager.evaluate(test_loader, loss=loss)


def _refuse(*problems: str) -> None:
    if problems:
        raise SettingError(problems)


def _scheduler_of(
    optimizer: Optimizer, scheduler: LRScheduler | Callable[[Optimizer], LRScheduler] | None
) -> LRScheduler | None:
    if scheduler is None or isinstance(scheduler, LRScheduler):
        return scheduler
    scheduler = scheduler(optimizer)
    _refuse(*_problems_of_scheduler(scheduler, optimizer))
    return scheduler


def _problems_of_run(manager: RunManager, network: nn.Module, loader: Any, *, is_open: bool) -> list[str]:
    if is_open and (manager.network is not network or manager.loader is not loader):
        return ["the open run has another network or loader: give fit() those of begin_run()"]
    return []


def _problems_of_numbers(epochs: object, clip_grad_norm: object, batch_size: object) -> list[str]:
    problems = Problems()
    problems.check_count("epochs", epochs, 0)
    problems.check_batch_size(batch_size)
    if clip_grad_norm is not None and not (isinstance(clip_grad_norm, (int, float)) and clip_grad_norm > 0):
        problems.append(f"clip_grad_norm must be a number above 0, or None, got {clip_grad_norm!r}")
    return problems


def _problems_of_precision(precision: object, device: torch.device) -> list[str]:
    problems = Problems()
    problems.check_choice("precision", precision, PRECISIONS)
    if not problems and precision != "fp32" and precision not in (usable := usable_precisions(device)):
        problems.append(f"device {str(device)!r} has no precision {precision!r}; it has: {', '.join(usable)}")
    return problems


def _problems_of_pieces(micro_batch: object, network: nn.Module, *, accepted: bool) -> list[str]:
    if micro_batch is None:
        return []
    if micro_batch != "auto" and not is_count(micro_batch, 1):
        return [f"micro_batch must be a whole number, 1 or more, 'auto' or None, got {micro_batch!r}"]
    if micro_batch == "auto" and ranks.num_ranks() > 1:
        return ["under torchrun ranks would choose different pieces: give micro_batch a number"]
    if _has_batch_statistics(network) and not accepted:
        advice = "use GroupNorm, or accept it with batch_norm_per_piece=True"
        return [f"micro_batch changes the batch statistics of this network, and thus its results: {advice}"]
    return []


def _problems_of_optimizer(optimizer: object, network: nn.Module) -> list[str]:
    if not isinstance(optimizer, Optimizer):
        return [] if callable(optimizer) else [f"optimizer must be one of torch.optim, got {optimizer!r}"]
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if trained.isdisjoint(map(id, network.parameters())):
        return ["the optimizer has no parameter of this network: make it from network.parameters()"]
    return []


def _problems_of_scheduler(scheduler: object, optimizer: object) -> list[str]:
    if isinstance(scheduler, ReduceLROnPlateau):
        return ["ReduceLROnPlateau needs a metric, which fit() does not pass: use another scheduler"]
    if isinstance(scheduler, LRScheduler):
        if scheduler.optimizer is not optimizer:
            return ["the scheduler has another optimizer: give a function that makes it from the optimizer"]
    elif scheduler is not None and not callable(scheduler):
        return [f"scheduler must be one of torch.optim.lr_scheduler, got {scheduler!r}"]
    return []


def _problems_of_activations(network: nn.Module, *, asked: bool) -> list[str]:
    if asked and _has_batch_statistics(network):
        return ["checkpoint_activations would count every batch twice in the running statistics of BatchNorm"]
    return []


def _has_batch_statistics(network: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) and module.training for module in network.modules())
