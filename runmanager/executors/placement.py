"""The assignment of devices to runs."""

import math
from collections.abc import Collection, Iterable, Sequence

AUTO = "auto"
_CORES_PER_LANE = 2  # number of cores per lane for jobs="auto": training of a small network uses few cores


class Placement:
    """Assigns devices to runs, within the limits per device and in total."""

    def __init__(self, jobs: int | str, runs_per_device: int, devices: Sequence[str], num_cores: int) -> None:
        self.lost: dict[str, str] = {}  # device that is no longer used -> reason
        self._accelerators = [device for device in devices if device != "cpu"]
        self._per_device = runs_per_device
        self._on_cpu: float = max(1, num_cores // _CORES_PER_LANE) if jobs == AUTO else math.inf
        self.most: float = len(self._accelerators) * runs_per_device + self._on_cpu
        """The maximum number of concurrent runs."""
        if isinstance(jobs, int):
            self.most = jobs

    def reachable(self, requests: Iterable[str]) -> int:
        """Return the maximum number of runs on these devices that can be executed at once, at least 1."""
        taken: list[str] = []
        for request in requests:
            if len(taken) < self.most and (device := self.free_device(request, taken)):
                taken.append(device)
        return max(len(taken), 1)

    def free_device(self, request: str, taken: Sequence[str], resting: Collection[str] = ()) -> str | None:
        """Return the requested device with the fewest runs, None if all are full."""
        devices = [device for device in self._candidates(request) if device not in resting]
        device = min(devices, key=taken.count, default=None)
        if device is None or taken.count(device) >= (self._on_cpu if device == "cpu" else self._per_device):
            return None
        return device

    def why_never(self, request: str) -> str:
        """Return the reason why a run on this device can never be executed, "" if it can."""
        if self._candidates(request):
            return ""
        reasons = [why for device, why in self.lost.items() if request in (device, device.partition(":")[0])]
        return "; ".join(reasons) or f"no device {request!r}"

    def _candidates(self, request: str) -> list[str]:
        if request.partition(":")[0] in ("cpu", "meta"):
            return ["cpu"]
        # a run may request mps, which has no index, also as mps:0
        return [
            device
            for device in self._accelerators
            if request in (device, device.partition(":")[0], f"{device}:0") and device not in self.lost
        ]
