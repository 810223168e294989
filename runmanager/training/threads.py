"""The number of threads that torch computes a run with: that of its first attempt, for equal numbers."""

import torch

from runmanager.devices import torch_devices


class Threads:
    """Keeps the number of threads of a run that is resumed, in this process, until they are given back."""

    def __init__(self) -> None:
        self._before = self._kept = torch.get_num_threads()

    def keep(self, number: int | None) -> str:
        """Let torch compute with as many threads as the first attempt; None leaves them as they are.

        Sums are added up in another order with another number of threads.

        Returns:
            Why that number is not kept, "" if it is.
        """
        most = max(torch_devices.num_cores(), self._before)
        if number is not None and number > most:  # each step of a small network would take 50 times as long
            return f"it began with {number} threads and continues with {self._before}: there are {most} cores"
        if number is not None and number != self._before:
            self._kept = number
            torch.set_num_threads(number)
        return ""

    def give_back(self) -> None:
        """Let torch compute with as many threads as before, unless the run has set another number itself."""
        if self._kept != self._before and torch.get_num_threads() == self._kept:
            torch.set_num_threads(self._before)
