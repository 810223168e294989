"""The assignment of devices to runs."""

import math
from collections import Counter
from collections.abc import Sequence

AUTO = "auto"
_CORES_PER_LANE = 2  # number of cores per lane for jobs="auto": training of a small network uses few cores


class Placement:
    """Assigns devices to runs, within the limits per device and in total.

    `jobs` and `runs_per_device` are the arguments of an `Executor`; `devices` and `num_cores` describe this
    machine.
    """

    def __init__(self, jobs: int | str, runs_per_device: int, devices: Sequence[str], num_cores: int) -> None:
        self.lost: dict[str, str] = {}  # device that is no longer used -> reason
        self.resting: set[str] = set()  # devices that get no runs for now
        self._accelerators = [device for device in devices if device != "cpu"]
        self._per_device = runs_per_device
        self._on_cpu: float = max(1, num_cores // _CORES_PER_LANE) if jobs == AUTO else math.inf
        self._jobs = jobs if isinstance(jobs, int) else None
        self._taken: Counter[str] = Counter()

    @property
    def most(self) -> int:
        """The maximum number of concurrent runs."""
        if self._jobs is not None:
            return self._jobs
        return len(self._accelerators) * self._per_device + int(self._on_cpu)

    def reachable(self, requests: Sequence[str]) -> int:
        """Return the maximum number of runs on these devices that can be executed at once, at least 1."""
        taken = [device for device in map(self.take, requests) if device is not None]
        for device in taken:
            self.give_back(device)
        return max(len(taken), 1)

    def take(self, request: str) -> str | None:
        """Assign a device to a run, and return it; None if no requested device is free."""
        free = [
            device
            for device in self._candidates(request)
            if device not in self.resting
            and self._taken[device] < (self._on_cpu if device == "cpu" else self._per_device)
        ]
        if not free or (self._jobs is not None and self._taken.total() >= self._jobs):
            return None
        device = min(free, key=lambda device: self._taken[device])
        self._taken[device] += 1
        return device

    def give_back(self, device: str) -> None:
        """Release the device of a run."""
        self._taken[device] -= 1

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
        names = {device: (device, device.partition(":")[0], f"{device}:0") for device in self._accelerators}
        named = [device for device in self._accelerators if request in names[device]]
        return [device for device in named if device not in self.lost]
