"""fit(): the standard loop over one network and one optimizer, with reduced precision and micro-batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from runmanager.core.checkpoint import Keep
from runmanager.core.epoch import num_batches
from runmanager.core.evaluate import BatchStep, Loss, Metric, counted_part, pair_of
from runmanager.core.loaders import Measure, is_collated
from runmanager.core.loop_options import LoopOptions
from runmanager.core.run import id_of, params_of
from runmanager.devices import ranks
from runmanager.devices.torch_devices import quiet
from runmanager.errors import CheckpointError, InvalidArgumentError, Problems, is_count
from runmanager.front.manager import RunManager
from runmanager.front.optimizer_step import OptimizerStep, usable_precisions
from runmanager.front.recorded_passes import EAGER_BATCHES, RecordedPasses

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
    clip_grad_norm: float | None = None,
    scheduler: LRScheduler | Callable[[Optimizer], Any] | None = None,
    scheduler_every: str = "epoch",
    keep: Keep | None = None,
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
            on, the column `micro_batch_used` has the size of a piece.
        batch_norm_per_piece: Whether to accept batch statistics over a piece instead of the whole batch.
        clip_grad_norm: The maximum norm of all gradients together.
        scheduler: A scheduler of torch.optim.lr_scheduler, or a function that makes a scheduler from the
            optimizer.
        scheduler_every: When to step the scheduler: after every "epoch", or every "step" of the optimizer.
        keep: The weights to save in the run's folder, as in `RunManager.epochs`; a pair also names the module.
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
            nothing was written. Or a batch is not (inputs, labels), or `step` returned a value of another form.
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
    options = LoopOptions({}, keep, patience, min_delta, max_seconds, checkpoint_every)
    _refuse({
        f"network must be a torch.nn.Module, got {network!r:.60}; for several, {_OWN_LOOP}":
            not isinstance(network, nn.Module)
    })  # fmt: skip
    id_of(run)  # refuses a run with names or values that cannot be stored
    is_open = manager._is_open
    device = manager._device_of(params_of(run), network)
    problems = _problems_of_values(manager, options, epochs, batch_size, scheduler_every, step)
    problems.check_choice(f"precision on {device}", precision, usable_precisions(device))
    has_statistics = any(isinstance(module, _BatchNorm) and module.training for module in network.modules())
    is_positive = isinstance(clip_grad_norm, (int, float)) and clip_grad_norm > 0
    rules = {
        "the open run has another network or loader: give fit() those of begin_run()":
            is_open and (manager.network is not network or manager.loader is not loader),
        f"clip_grad_norm must be a number above 0, or None, got {clip_grad_norm!r}":
            clip_grad_norm is not None and not is_positive,
        "loss= is not used with step=, which returns the loss: leave out loss= or step=":
            step is not None and loss is not functional.cross_entropy,
        "metrics= needs test_loader=: give a loader, or leave metrics= out":
            metrics is not None and test_loader is None,
        f"micro_batch must be a whole number, 1 or more, 'auto' or None, got {micro_batch!r}":
            micro_batch not in (None, "auto") and not is_count(micro_batch, 1),
        "under torchrun ranks would choose different pieces: give micro_batch a number":
            micro_batch == "auto" and ranks.num_ranks() > 1,
        "micro_batch changes the batch statistics of this network: use GroupNorm, or accept it"
        " with batch_norm_per_piece=True":
            has_statistics and micro_batch is not None and not batch_norm_per_piece,
    }  # fmt: skip
    _refuse(dict.fromkeys(problems, True) | rules)
    # make the optimizer before the clock starts, as the first one of a process imports modules for seconds
    optimizer = optimizer(network.parameters()) if callable(optimizer) else optimizer
    scheduler = scheduler(optimizer) if callable(scheduler) else scheduler
    _check_made(network, optimizer, scheduler)
    measure = batch_size or manager._context.measure
    is_recorded = (
        device.type == "cuda" and step is None and micro_batch is None and ranks.num_ranks() == 1
        and (num_batches(loader) or 0) > 2 * EAGER_BATCHES  # a recording takes as long as some eager steps
    )  # fmt: skip
    take_step = OptimizerStep(
        network, optimizer, device, loss=loss, step=step, precision=precision, micro_batch=micro_batch,
        clip_grad_norm=clip_grad_norm, batch_size=measure, are_parts=is_collated(loader),
        recorded=RecordedPasses(network, loss, optimizer) if is_recorded else None,
    )  # fmt: skip
    # no warning from torch if the scaler skips the first step
    quietly = quiet if precision == "fp16" else nullcontext
    test_loaders: Any = test_loader if isinstance(test_loader, Mapping) else {"test": test_loader}
    options = replace(options, checkpoint=take_step.parts() | ({"scheduler": scheduler} if scheduler else {}))

    def step_scheduler(end_of: str) -> None:
        if scheduler and scheduler_every == end_of:
            with quietly():
                scheduler.step()

    with manager._counting(measure), nullcontext() if is_open else manager.run(run, network, loader):
        for _ in manager.epochs(epochs, **vars(options)):
            for sent in manager.batches():
                batch = sent if step else pair_of(sent, "fit()")
                value, scores, targets = take_step(batch)
                manager.track_loss(value, counted_part(batch, targets, measure))
                if scores is not None:
                    manager.track_num_correct(scores, targets)
                step_scheduler("step")
            step_scheduler("epoch")
            if board := manager._open_run("fit()").board:
                board.gradient_norm = take_step.norm
            if micro_batch == "auto" and take_step.size:
                manager.track({"micro_batch_used": take_step.size})
            with take_step.autocast:
                for name, part in test_loaders.items() if test_loader is not None else ():
                    manager.evaluate(part, name, loss=loss, step=step, metrics=metrics)


def _problems_of_values(
    manager: RunManager,
    options: LoopOptions,
    epochs: object,
    batch_size: object,
    scheduler_every: object,
    step: object,
) -> Problems:
    """Return the problems with values whose rules are shared with other functions."""
    problems = options.problems()
    problems.check_count("epochs", epochs, 0)
    problems.check_batch_size(batch_size)
    problems.check_choice("scheduler_every", scheduler_every, ("step", "epoch"))
    if step is not None:
        problems.check_function("step", step, "the network and a batch")
    try:
        with problems.collecting():
            manager._early_stop(options)
    except CheckpointError as error:
        problems.append(str(error))
    return problems


def _check_made(network: nn.Module, optimizer: object, scheduler: object) -> None:
    """Check an optimizer and a scheduler, which functions may have made."""
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, LBFGS):
        raise InvalidArgumentError(
            f"fit() makes one step of one optimizer of torch.optim, got {optimizer!r:.60}: else {_OWN_LOOP}"
        )
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    _refuse({
        "the optimizer has no parameter of this network: make it from network.parameters()":
            trained.isdisjoint(map(id, network.parameters())),
        f"scheduler must have step(), as those of torch.optim.lr_scheduler, got {scheduler!r:.60}":
            scheduler is not None and not hasattr(scheduler, "step"),
        "ReduceLROnPlateau needs a metric, which fit() does not pass: use another scheduler":
            isinstance(scheduler, ReduceLROnPlateau),
        "the scheduler has another optimizer: give a function that makes it from the optimizer":
            getattr(scheduler, "optimizer", optimizer) is not optimizer,
    })  # fmt: skip


def _refuse(rules: Mapping[str, bool]) -> None:
    """Raise the rules that are broken."""
    if problems := [rule for rule, is_broken in rules.items() if is_broken]:
        raise InvalidArgumentError("; ".join(problems))  # in one line, as it is the cause in the run's row
