"""The first input of a network, from which its samples and its graph are drawn."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from runmanager.board import images


class FirstInput:
    """The first input of a network, seen by a hook that removes itself: no extra pass, no random numbers."""

    def __init__(self) -> None:
        self.images: torch.Tensor | None = None  # that fit on a sheet
        self.shape: torch.Size | None = None  # None before the first batch
        self.dtype: torch.dtype | None = None
        self._handle: RemovableHandle | None = None

    def watch(self, network: nn.Module, see: Callable[[nn.Module, tuple[Any, ...]], None]) -> None:
        """Call `see` with the network's inputs before each of its forward passes, until `forget`."""
        if not isinstance(network, torch.jit.ScriptModule):
            self._handle = network.register_forward_pre_hook(_Hook(see))

    def forget(self) -> None:
        """Remove the hook; a second time does nothing."""
        if self._handle:
            self._handle.remove()
            self._handle = None

    def take(self, inputs: tuple[Any, ...]) -> None:
        """Keep the shape of the inputs and the images to show, and remove the hook."""
        self.forget()
        if inputs and isinstance(inputs[0], torch.Tensor):
            self.shape, self.dtype = inputs[0].shape, inputs[0].dtype
            if images.is_images(inputs[0]):
                part = inputs[0].detach()[: images.num_shown(inputs[0])]
                self.images = part.clone()  # a view would keep the whole batch


class _Hook:
    """Passes the network's inputs on; the hook of a copied or saved network does nothing."""

    def __init__(self, see: Callable[[nn.Module, tuple[Any, ...]], None] | None = None) -> None:
        self._see = see

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._see:
            self._see(module, inputs)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()
