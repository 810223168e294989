"""fit(): the standard loop over one network and one optimizer, with reduced precision and micro-batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from runmanager.devices import ranks, torch_devices
from runmanager.devices.torch_devices import quiet
from runmanager.errors import CheckpointError, InvalidArgumentError, Problems, is_count
from runmanager.launch.manager import RunManager, hooks_of
from runmanager.run import params_of
from runmanager.training.batch_size import Measure
from runmanager.training.batch_step import BatchStep, Loss, counted_part, pair_of
from runmanager.training.epoch_options import EpochOptions
from runmanager.training.evaluation import Metric
from runmanager.training.optimizer_step import PRECISIONS, OptimizerStep, usable_precisions

EVERY = ("step", "epoch")
_OWN_LOOP = "write the loop, as docs/training-function.md shows"


def fit(
    run: Any,
    network: nn.Module,
    loader: Any,
    manager: RunManager,
    *,
    optimizer: Optimizer | Callable[[Iterator[nn.Parameter]], Optimizer],
    epochs: int,
    loss: Loss = functional.cross_entropy,
    step: BatchStep | None = None,
    test_loader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    precision: str = "fp32",
    micro_batch: int | str | None = None,
    batch_norm_per_piece: bool = False,
    memory_format: torch.memory_format | None = None,
    clip_grad_norm: float | None = None,
    scheduler: LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
    scheduler_every: str = "epoch",
    checkpoint_activations: bool = False,
    keep: str | None = None,
    patience: int | None = None,
    min_delta: float = 0.0,
    max_seconds: float | None = None,
    checkpoint_every: int | str | None = None,
    batch_size: Measure | None = None,
) -> None:
    """Train a network on the run's device, with one row and one checkpoint per epoch.

    In fp32 and without micro-batches, the results equal the results of the plain loop with the same seed; on a
    cpu they are bit-identical. No call waits for the device within an epoch, except with fp16 and an optimizer
    that is not fused.

    If the loss is a mean over samples, a batch that is cut into pieces gives the same step as the whole batch,
    up to rounding. A loss with class weights or ``ignore_index`` is not such a mean. Dropout draws new random
    numbers for each piece, and new numbers again if a batch is repeated with smaller pieces.

    Several networks with their own optimizers, as in a GAN, need your own loop; see
    docs/training-function.md.

    Args:
        run: The hyperparameters; without `device`, the run is executed on the network's device.
        network: The network, with each module in its training mode.
        loader: Yields (inputs, labels); with `step`, batches of any form.
        manager: The manager that logs the run. If the run is open already, `fit` trains it and leaves it open.
        optimizer: An optimizer, or a function that makes an optimizer from the parameters; the function is
            called when the parameters are on their device.
        epochs: The number of epochs, including the epochs of earlier attempts.
        loss: Called with the network's output and the labels, returns the mean over the batch.
        step: Called with the network and a batch on its device; returns (loss, outputs, targets), or only the
            loss, as in `RunManager.evaluate`. Use `step` for batches that are a mapping, or have other parts
            than (inputs, labels); `step` replaces `loss`. Training and `test_loader` use the same `step`.
        test_loader: Evaluated after every epoch: the columns `test_loss` and `test_accuracy`. Use a mapping for
            several loaders, or for another name, such as ``{"validation": loader}``.
        metrics: Name -> metric of `test_loader`, as in `RunManager.evaluate`: the columns `test_<name>`.
        precision: "fp32", or "bf16" or "fp16" by ``torch.autocast``; fp16 with a gradient scaler.
        micro_batch: The maximum number of samples per forward pass; gradients accumulate to the step of the
            whole batch. "auto" starts with whole batches and halves the piece when memory runs out. From then
            on, the column `micro_batch` has the size of a piece (`micro_batch_used`, if `micro_batch` is a
            hyperparameter).
        batch_norm_per_piece: Whether to accept batch statistics over a piece instead of the whole batch.
        memory_format: The memory format of the network and its inputs, such as ``torch.channels_last``; with
            `step`, only of the network.
        clip_grad_norm: The maximum norm of all gradients together.
        scheduler: A scheduler of torch.optim.lr_scheduler, or a function that makes a scheduler from the
            optimizer.
        scheduler_every: When to step the scheduler: after every "epoch", or every "step" of the optimizer.
        checkpoint_activations: Keep only the inputs of the network's direct children for the backward pass,
            which recomputes all other values: the network then needs less memory, and up to a third more time.
        keep: The weights to save in the run's folder, as in `RunManager.epochs`.
        patience: The number of epochs without an improvement after which training ends. The metric of `keep` is
            compared, else the metric of the goal.
        min_delta: The smallest improvement that counts for `patience`.
        max_seconds: The run duration (s), including earlier attempts, after which no further epoch begins.
        checkpoint_every: The interval of checkpoints inside an epoch: a number of batches, or a duration such
            as "10min", as in `RunManager.epochs`.
        batch_size: Called with (inputs, labels), or with the batch if there is a `step`, for whole batches, for
            pieces and for `test_loader`; returns the number of samples that the loss averages over. By default,
            the manager's `batch_size` counts; without it, the labels or targets are counted.

    Raises:
        InvalidArgumentError: The run cannot be trained with these settings; the message lists all problems, and
            nothing was written.
        InvalidArgumentError: A batch is not (inputs, labels), or `step` returned a value of another form.
        DeviceError: The run's device is missing.
        LifecycleError: Another run is open.
        StorageError: The run's folder could not be written.

    Example:
        >>> loader = [(torch.ones(8, 4), torch.arange(8) % 3)] * 5
        >>> manager = RunManager("example", display=False)
        >>> fit({"lr": 0.1}, nn.Linear(4, 3), loader, manager, optimizer=torch.optim.SGD, epochs=2)
        >>> manager.results["epoch"].tolist()
        [1, 2]
    """
    options = EpochOptions({}, keep, patience, min_delta, max_seconds, checkpoint_every)
    _refuse(*_problems_of_several(network, loader, optimizer, scheduler))
    params = params_of(run)
    is_open = hooks_of(manager).is_open
    device = hooks_of(manager).device_of(params, network)
    _refuse(
        *_problems_of_run(manager, network, loader, is_open=is_open),
        *_problems_of_numbers(epochs, clip_grad_norm, batch_size),
        *_problems_of_step(step, loss, metrics, test_loader),
        *_problems_of_epochs(manager, options),
        *_problems_of_precision(precision, device),
        *_problems_of_pieces(micro_batch, network, accepted=batch_norm_per_piece),
        *_problems_of_optimizer(optimizer, network),
        *_problems_of_scheduler(scheduler, optimizer, scheduler_every),
        *_problems_of_activations(network, asked=checkpoint_activations),
    )
    # begin_run() also moves the network, but the optimizer is made before
    if len(torch_devices.devices_of(network)) <= 1:
        network.to(device)
    if memory_format is not None:
        network.to(memory_format=memory_format)
    # make the optimizer before the clock starts, as the first optimizer of a process imports modules for
    # seconds
    optimizer = _optimizer_of(network, optimizer)
    scheduler = _scheduler_of(optimizer, scheduler)
    measure = batch_size or hooks_of(manager).measure
    take_step = OptimizerStep(
        network, loss, optimizer, device, compute=step, precision=precision, micro_batch=micro_batch,
        memory_format=memory_format, clip_grad_norm=clip_grad_norm,
        checkpoint_activations=checkpoint_activations, measure=measure,
    )  # fmt: skip
    parts = take_step.parts() | ({"scheduler": scheduler} if scheduler else {})
    after_step, after_epoch = (scheduler if scheduler_every == every else None for every in EVERY)
    # no warning from torch if the scaler skips the first step
    quietly = quiet if precision == "fp16" else nullcontext
    column = "micro_batch" if "micro_batch" not in params else "micro_batch_used"
    counting = hooks_of(manager).counting(measure)
    named = test_loader if isinstance(test_loader, Mapping) else {"test": test_loader}
    test_loaders = {name: part for name, part in named.items() if part is not None}
    options = replace(options, checkpoint=parts)
    with counting, nullcontext() if is_open else manager.run(run, network, loader):
        for _ in manager.epochs(epochs, **vars(options)):
            for sent in manager.batches():
                batch = sent if step else pair_of(sent, "fit()")
                value, scores, targets = take_step(batch)
                manager.track_loss(value, counted_part(batch, targets, is_measured=measure is not None))
                if scores is not None:
                    manager.track_num_correct(scores, targets)
                if after_step:
                    with quietly():
                        after_step.step()
            if after_epoch:
                with quietly():
                    after_epoch.step()
            if take_step.reduced_to is not None:
                manager.track({column: take_step.reduced_to})
            with take_step.autocast:
                for name, part in test_loaders.items():
                    manager.evaluate(part, name, loss=loss, step=step, metrics=metrics)


def _refuse(*problems: str) -> None:
    if problems:
        raise InvalidArgumentError("; ".join(problems))  # in one line, as it is the cause in the run's row


def _optimizer_of(
    network: nn.Module, optimizer: Optimizer | Callable[[Iterator[nn.Parameter]], Optimizer]
) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        return optimizer
    made = optimizer(network.parameters())
    _refuse(*_problems_of_several(network, None, made, None))
    _refuse(*_problems_of_optimizer(made, network, is_made=True))
    return made


def _scheduler_of(
    optimizer: Optimizer, scheduler: LRScheduler | Callable[[Optimizer], LRScheduler] | None
) -> LRScheduler | None:
    if scheduler is None or isinstance(scheduler, LRScheduler):
        return scheduler
    scheduler = scheduler(optimizer)
    _refuse(*_problems_of_scheduler(scheduler, optimizer, "epoch"))
    return scheduler


def _problems_of_several(network: object, loader: object, optimizer: object, scheduler: object) -> Problems:
    """Return the problems with alternative arguments: fit() needs exactly one, but got several or none."""
    problems = Problems()
    given = {"network": network, "optimizer": optimizer, "loader": loader}
    several = [name for name, value in given.items() if _is_several(value)]
    if several:
        names = " and ".join(f"one {name}" for name in several)
        problems.append(f"fit() trains with {names}: for several, as a GAN has them, {_OWN_LOOP}")
    if "network" not in several and not isinstance(network, nn.Module):
        problems.append(f"network must be a torch.nn.Module, got {network!r}")
    if _is_several(scheduler):
        advice = "join several with ChainedScheduler or SequentialLR of torch.optim.lr_scheduler"
        problems.append(f"fit() steps one scheduler: {advice}")
    return problems


def _is_several(value: object) -> bool:
    """Whether a value is a collection, for example of networks or optimizers.

    A list of batches is a single loader.
    """
    if isinstance(value, nn.Module):
        return False
    items = list(value.values()) if isinstance(value, Mapping) else value
    kinds = (Optimizer, LRScheduler, DataLoader)
    return (
        isinstance(items, (list, tuple))
        and bool(items)
        and all(isinstance(item, kinds) or callable(item) for item in items)
    )


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


def _problems_of_step(step: object, loss: object, metrics: object, test_loader: object) -> Problems:
    problems = Problems()
    if step is not None:
        problems.check_function("step", step, "the network and a batch")
    if step is not None and loss is not functional.cross_entropy:
        problems.append("loss= is not used with step=, which returns the loss: leave out loss= or step=")
    if metrics is not None and test_loader is None:
        problems.append("metrics= needs test_loader=: give a loader, or leave metrics= out")
    for name in test_loader if isinstance(test_loader, Mapping) else ():
        if not isinstance(name, str) or not name.isidentifier():
            problems.append(
                f"names in test_loader become prefixes, as 'validation', got {name!r}: write letters and _"
            )
    return problems


def _problems_of_epochs(manager: RunManager, options: EpochOptions) -> Problems:
    problems = options.problems()
    try:
        with problems.collecting():
            hooks_of(manager).watched(options)
    except CheckpointError as error:
        problems.append(str(error))
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


def _problems_of_optimizer(optimizer: object, network: nn.Module, *, is_made: bool = False) -> Problems:
    problems = Problems()
    if not isinstance(optimizer, Optimizer):
        if is_made or not callable(optimizer):
            problems.append(f"optimizer must be one of torch.optim, got {optimizer!r}")
        return problems
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if trained.isdisjoint(map(id, network.parameters())):
        problems.append("the optimizer has no parameter of this network: make it from network.parameters()")
    if isinstance(optimizer, LBFGS):
        problems.append(f"LBFGS computes a batch several times in one step, which fit() does not: {_OWN_LOOP}")
    return problems


def _problems_of_scheduler(scheduler: object, optimizer: object, every: object) -> Problems:
    problems = Problems()
    problems.check_choice("scheduler_every", every, EVERY)
    if isinstance(scheduler, ReduceLROnPlateau):
        problems.append("ReduceLROnPlateau needs a metric, which fit() does not pass: use another scheduler")
    elif isinstance(scheduler, LRScheduler):
        if scheduler.optimizer is not optimizer:
            advice = "give a function that makes it from the optimizer"
            problems.append(f"the scheduler has another optimizer: {advice}")
    elif scheduler is not None and not callable(scheduler):
        problems.append(f"scheduler must be one of torch.optim.lr_scheduler, got {scheduler!r}")
    elif scheduler is None and every == "step":
        problems.append("scheduler_every='step' without scheduler=: give one of torch.optim.lr_scheduler")
    return problems


def _problems_of_activations(network: nn.Module, *, asked: bool) -> list[str]:
    if asked and _has_batch_statistics(network):
        return ["checkpoint_activations would count every batch twice in the running statistics of BatchNorm"]
    return []


_BATCH_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d,
)  # fmt: skip


def _has_batch_statistics(network: nn.Module) -> bool:
    return any(isinstance(module, _BATCH_NORMS) and module.training for module in network.modules())
