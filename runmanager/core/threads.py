"""The thread count of a resumed run: that of the first attempt, so that results are bit-identical."""

import torch

from runmanager.devices import torch_devices


class Threads:
    """Sets the thread count of a resumed run in this process, until `give_back`."""

    def __init__(self) -> None:
        self._before = self._number = torch.get_num_threads()

    def keep(self, number: int | None) -> str:
        """Set torch's thread count to the thread count of the first attempt; None does not change it.

        The order of floating-point sums depends on the number of threads.

        Returns:
            The reason why the thread count cannot be set, or "".
        """
        most = max(torch_devices.num_cores(), self._before)
        # with more threads than cores, steps of a small network would take 50 times as long
        if number is not None and number > most:
            return f"it began with {number} threads and continues with {self._before}: there are {most} cores"
        if number is not None and number != self._before:
            self._number = number
            torch.set_num_threads(number)
        return ""

    def give_back(self) -> None:
        """Restore torch's thread count, unless the run has set a different thread count."""
        if self._number != self._before and torch.get_num_threads() == self._number:
            torch.set_num_threads(self._before)
