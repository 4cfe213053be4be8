"""The generators that a task may draw from without a word: torch's, Python's and numpy's."""

import logging
import random
from typing import Any

import numpy as np
import torch

__all__ = ["RANDOM_NAMES", "random_states", "seed_all", "set_random_states"]

RANDOM_NAMES = ("random", "cuda_random", "python_random", "numpy_random")

_log = logging.getLogger(__name__)


def seed_all(seed: int) -> None:
    """Seed all of them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_states() -> dict[str, Any]:
    """Their states, by the names of `RANDOM_NAMES`; what `flatten_state` takes."""
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    return {
        "random": torch.get_rng_state(),
        "cuda_random": _cuda_states(),
        "python_random": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy_random": {**numpy, "state": _tensors(numpy["state"])},
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Let all of them go on as they were; older checkpoints have torch's alone."""
    torch.set_rng_state(states["random"])
    _set_cuda_states(states.get("cuda_random", []))
    if python := states.get("python_random"):
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    if numpy := states.get("numpy_random"):
        np.random.set_state({**numpy, "state": _arrays(numpy["state"])})


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(each.astype(np.int64)) if isinstance(each, np.ndarray) else each
        for name, each in state.items()
    }


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: each.numpy().astype(np.uint32) if isinstance(each, torch.Tensor) else each
        for name, each in state.items()
    }


def _cuda_states() -> list[torch.Tensor]:
    """Of the generators of all CUDA devices; none where this process does not use CUDA."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if is_used else []


def _set_cuda_states(states: list[torch.Tensor]) -> None:
    """Set the generator of each device that was saved; of devices that are not here, nothing."""
    num_devices = torch.cuda.device_count() if states else 0
    for device, state in enumerate(states[:num_devices]):
        torch.cuda.set_rng_state(state, device)
    if len(states) > num_devices:
        _log.warning(
            "the checkpoint has random states of %d CUDA devices, %d are here; what the others "
            "would draw is lost",
            len(states),
            num_devices,
        )
