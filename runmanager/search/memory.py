"""What a sampler of Optuna has in memory beside the trials, as the record of a search has it.

With the trials and this, a sampler goes on without suggesting again all that it has suggested. That is done for
the samplers whose suggestions take long, the TPE and the Gaussian process, if their options can be compared.
"""

import base64
import hashlib
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from runmanager.search.record import NUM_KEYS, Generator, Kernel, Saved

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

_ALGORITHM = "MT19937"
_KERNELS = "_gprs_cache_list"  # of the Gaussian process: from which it begins to fit the next ones
_COMPARED = (bool, int, float, str, type(None))


class Memory:
    """What a sampler has in memory.

    Args:
        sampler: It has not suggested anything yet.

    Attributes:
        sampler_id: Says which sampler it is, of which version, seed and options; "" if it cannot be saved.
    """

    def __init__(self, sampler: "BaseSampler") -> None:
        self._sampler = sampler
        self._generators: list[Any] = []
        options = self._options()
        self.sampler_id = "" if options is None else self._digest(options)

    def save(self) -> Saved | None:
        """Return what it has in memory, None if it cannot be saved."""
        if not self.sampler_id:
            return None
        kernels = [
            Kernel(each.inverse_squared_lengthscales.tolist(), each.kernel_scale.item(), each.noise_var.item())
            for each in vars(self._sampler).get(_KERNELS) or ()
        ]
        return Saved(self.sampler_id, [_state(each) for each in self._generators], kernels)

    def can_restore(self, saved: Saved, num_goals: int) -> bool:
        """Whether the same sampler has saved this, for as many goals."""
        if self.sampler_id != saved.sampler or len(self._generators) != len(saved.generators):
            return False
        sizes = {len(each.inverse_squared_lengthscales) for each in saved.kernels}
        are_kernels = len(saved.kernels) == num_goals and len(sizes) == 1 and _KERNELS in vars(self._sampler)
        are_kernels &= all(
            min(each.scale, each.noise, *each.inverse_squared_lengthscales) > 0 for each in saved.kernels
        )
        is_whole = all(len(_keys(each)) == 4 * NUM_KEYS for each in saved.generators)
        return is_whole and (are_kernels or not saved.kernels)

    def restore(self, saved: Saved) -> None:
        """Go on from what was saved."""
        import numpy as np

        for generator, state in zip(self._generators, saved.generators, strict=True):
            keys = np.frombuffer(_keys(state), "<u4")
            generator.rng.set_state((_ALGORITHM, keys, state.index, state.has_gauss, state.gauss))
        if saved.kernels:
            vars(self._sampler)[_KERNELS] = [_kernel(each) for each in saved.kernels]

    def _options(self) -> dict[str, Any] | None:
        """Find its random numbers, and return its options, None if it may have more in memory than is saved."""
        from optuna.samplers import GPSampler, RandomSampler, TPESampler

        kind = type(self._sampler)
        # another version of Optuna may keep kernels in another form
        if kind is not TPESampler and not (kind is GPSampler and _KERNELS in vars(self._sampler)):
            return None
        usual = vars(kind())
        options: dict[str, Any] = {}
        for name, value in vars(self._sampler).items():
            generator = vars(value).get("_rng") if type(value) is RandomSampler else value
            if type(generator).__name__ == "LazyRandomState":
                self._generators.append(generator)
            elif isinstance(value, _COMPARED):
                options[name] = value
            # what is of a search space follows from the trials; other objects may be functions of the user's
            elif not type(value).__module__.startswith("optuna.search_space") and value != usual.get(name):
                return None
        is_seeded = all(vars(generator).get("_rng") is not None for generator in self._generators)
        return options if self._generators and is_seeded else None

    def _digest(self, options: dict[str, Any]) -> str:
        import numpy as np
        import optuna

        first = [_state(generator).keys for generator in self._generators]
        versions = [optuna.__version__, np.__version__]
        facts = json.dumps([type(self._sampler).__name__, versions, sorted(options.items()), first])
        return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _state(generator: Any) -> Generator:
    """Return where an Optuna's LazyRandomState is."""
    _, keys, index, has_gauss, gauss = generator.rng.get_state()
    return Generator(base64.b64encode(keys.astype("<u4").tobytes()).decode(), index, has_gauss, gauss)


def _keys(state: Generator) -> bytes:
    try:
        return base64.b64decode(state.keys, validate=True)
    except ValueError:
        return b""


def _kernel(saved: Kernel) -> Any:
    """Return what the Gaussian process reads of a kernel."""
    import torch

    return SimpleNamespace(
        inverse_squared_lengthscales=torch.tensor(
            list(saved.inverse_squared_lengthscales), dtype=torch.float64
        ),
        kernel_scale=torch.tensor(saved.scale, dtype=torch.float64),
        noise_var=torch.tensor(saved.noise, dtype=torch.float64),
    )
