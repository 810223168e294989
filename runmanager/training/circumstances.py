"""Where and how a run is executed, as its journal and TensorBoard say it."""

from typing import Any

import torch
from torch import nn

from runmanager.devices import torch_devices
from runmanager.storage import fingerprint


def circumstances(device: torch.device, network: nn.Module | None) -> dict[str, Any]:
    """Describe the device, the size of the network, the versions, the commit and the command."""
    parameters = () if network is None else network.parameters()
    return {
        "device": str(device),
        "device_name": torch_devices.device_name(device),
        "parameters": sum(p.numel() for p in parameters if not isinstance(p, nn.UninitializedParameter)),
        "versions": fingerprint.versions(),
        "commit": fingerprint.git_commit(),
        "command": fingerprint.command(),
    }
