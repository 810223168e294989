"""Which device a run gets, and when."""

from collections import Counter
from collections.abc import Sequence

AUTO = "auto"
_CORES_PER_LANE = 2  # with jobs="auto": one small network does not use many cores


class Placing:
    """Gives runs their devices: at most so many at a time, and so many on each accelerator.

    Args:
        jobs: How many runs are executed at the same time, at most; "auto" for as many as there are devices for.
        runs_per_device: How many runs may share an accelerator.
        there: The devices of this machine, as in ``["cpu", "cuda:0", "cuda:1"]``.
        cores: How many cores it has.

    Attributes:
        lost: Device -> why it is no longer used.
    """

    def __init__(self, jobs: int | str, runs_per_device: int, there: Sequence[str], cores: int) -> None:
        self.lost: dict[str, str] = {}
        self._accelerators = [device for device in there if device != "cpu"]
        self._per_device = runs_per_device
        self._on_cpu = max(1, cores // _CORES_PER_LANE) if jobs == AUTO else None
        self._jobs = jobs if isinstance(jobs, int) else None
        self._taken: Counter[str] = Counter()

    @property
    def most(self) -> int:
        """How many runs can be executed at the same time."""
        if self._jobs is not None:
            return self._jobs
        return len(self._accelerators) * self._per_device + (self._on_cpu or 0)

    def reachable(self, wanted: Sequence[str]) -> int:
        """Return how many runs that want these devices can be executed at the same time, at least 1."""
        taken = [device for device in map(self.take, wanted) if device is not None]
        for device in taken:
            self.give_back(device)
        return max(len(taken), 1)

    def take(self, wanted: str) -> str | None:
        """Take a place for a run and return its device, None if none is free now.

        ``cuda`` is any CUDA device, the one with the fewest runs; ``cuda:1`` is that one.
        """
        free = [device for device in self._candidates(wanted) if self._is_free(device)]
        if not free or (self._jobs is not None and self._taken.total() >= self._jobs):
            return None
        device = min(free, key=lambda device: self._taken[device])
        self._taken[device] += 1
        return device

    def give_back(self, device: str) -> None:
        """Free the place of a run on a device."""
        self._taken[device] -= 1

    def why_never(self, wanted: str) -> str:
        """Return why a run that wants this device can never be executed, "" if it can."""
        if self._candidates(wanted):
            return ""
        reasons = [why for device, why in self.lost.items() if wanted in (device, device.partition(":")[0])]
        return "; ".join(reasons) or f"no device {wanted!r}"

    def _candidates(self, wanted: str) -> list[str]:
        kind, _, number = wanted.partition(":")
        if kind in ("cpu", "meta"):
            return ["cpu"]
        named = [d for d in self._accelerators if d == wanted or (not number and d.partition(":")[0] == kind)]
        return [device for device in named if device not in self.lost]

    def _is_free(self, device: str) -> bool:
        if device == "cpu":
            return self._on_cpu is None or self._taken[device] < self._on_cpu
        return self._taken[device] < self._per_device
