"""One small bag of 64 ids: forward, backward and step, beside `nn.EmbeddingBag(sparse=True)` + SGD.

So few ids cost next to nothing; what is measured is the way of a call through Python and autograd.
"""

import functools
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

import monolith
from benchmarks.harness import Measurement, Sample, emit, interleave, ratios, say, timed
from benchmarks.stage import Options, run_stage
from benchmarks.worker import check
from benchmarks.workload import LEARNING_RATE
from monolith.nn import EmbeddingBag
from monolith.optim import Optimizer
from monolith.table.optimizers import SGD

_NUM_IDS = 64
_ROWS = 1_000
_DIM = 16
_NUM_BATCHES = 32
_CHECK_TOLERANCE = 1e-6
_VERSIONS = {"monolith": monolith.__version__, "torch": torch.__version__}


def ids_batches() -> list[torch.Tensor]:
    """Ids of one bag each; no id twice, so that both systems sum in one order."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randperm(_ROWS, generator=generator)[:_NUM_IDS].unsqueeze(0)
        for _ in range(_NUM_BATCHES)
    ]


class SmallBag:
    """A bag and its optimizer.

    Args:
        bag: ids (1, n) -> (1, dim).
        optimizer: of the bag.
    """

    def __init__(self, bag: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._bag, self._optimizer = bag, optimizer
        self._batches = ids_batches()
        self._gradient = torch.full((1, _DIM), 0.01)

    def step(self, number: int) -> torch.Tensor:
        """Forward, backward, update; the output before it.  # (1, dim)"""
        self._optimizer.zero_grad()
        output: torch.Tensor = self._bag(self._batches[number % _NUM_BATCHES])
        output.backward(self._gradient)  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return output

    def sample(self, seconds: float) -> Sample:
        """Microseconds of a step."""
        num_steps = 0
        with timed() as window:
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                self.step(num_steps)
                num_steps += 1
        return Sample(window.seconds / num_steps * 1e6, window.others_cores)


def make() -> dict[str, SmallBag]:
    """Ours and torch's with equal rows."""
    theirs = nn.EmbeddingBag(_ROWS, _DIM, mode="sum", sparse=True)
    ours = EmbeddingBag(_DIM, mode="sum", optimizer=SGD(LEARNING_RATE), name="small")
    ours.table.assign(torch.arange(_ROWS), theirs.weight.detach())
    sgd = torch.optim.SGD(theirs.parameters(), lr=LEARNING_RATE)
    return {"monolith": SmallBag(ours, Optimizer(ours)), "torch": SmallBag(theirs, sgd)}


def run(options: Options) -> None:
    """Print one line."""
    say(f"[small_bag] {_NUM_IDS} ids, dim {_DIM}: forward, backward and step")
    torch.set_num_threads(2)
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    bags = make()
    for number in range(2 * _NUM_BATCHES):
        outputs = {system: bag.step(number).detach().numpy() for system, bag in bags.items()}
        check("small_bag", outputs["monolith"], outputs["torch"], tolerance=_CHECK_TOLERANCE)
    contenders: dict[str, Callable[[], Sample]] = {
        system: functools.partial(bag.sample, options.rules.sample_seconds)
        for system, bag in bags.items()
    }
    for warm_up in contenders.values():
        warm_up()
    series = interleave(contenders, options.rules)
    measurement = Measurement(
        name="small_bag",
        system="monolith",
        unit="us",
        series=series["monolith"],
        sizes={"rows": _ROWS, "dim": _DIM, "ids": _NUM_IDS, "threads": 2},
        versions=_VERSIONS,
        ratios=ratios(series, "monolith", ["torch"]),
    )
    emit(measurement, options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
