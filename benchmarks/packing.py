"""Many small tensors into one buffer and back: 200 tensors of 64 to 4,096 floats.

Beside them the same in plain torch: `torch.cat` of flattened views, and a loop of slices and
reshapes.
"""

import functools
import itertools
import sys
import time
from collections.abc import Callable

import torch

from benchmarks.harness import BenchmarkError, Sample, interleave, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith.native_training.ops import get_keyed_shape, pack_tensors, unpack_tensors
from monolith.native_training.ops.reshape import Shape

_NUM_TENSORS = 200
_COLUMNS = 16
_MIN_ROWS, _MAX_ROWS = 4, 256
_CALLS_PER_CLOCK = 20

Tensors = dict[str, torch.Tensor]


def make_tensors() -> Tensors:
    """Float32 (rows, 16), by name in sorted order."""
    generator = torch.Generator().manual_seed(0)
    size = (_NUM_TENSORS,)
    rows = torch.randint(_MIN_ROWS, _MAX_ROWS + 1, size, generator=generator).tolist()
    return {f"t{i:03}": torch.randn(n, _COLUMNS, generator=generator) for i, n in enumerate(rows)}


def pack_with_torch(tensors: Tensors) -> torch.Tensor:
    """One buffer of all elements."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def unpack_with_torch(shapes: dict[str, Shape], packed: torch.Tensor, splits: list[int]) -> Tensors:
    """Views of the buffer, by name."""
    ends = itertools.pairwise(splits)
    return {
        name: packed[begin:end].reshape(shape)  # type: ignore[arg-type]
        for (name, shape), (begin, end) in zip(shapes.items(), ends, strict=True)
    }


def sample(call: Callable[[], object], seconds: float) -> Sample:
    """Calls per second."""
    num_calls = 0
    with timed() as window:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            for _ in range(_CALLS_PER_CLOCK):
                call()
            num_calls += _CALLS_PER_CLOCK
    return Sample(num_calls / window.seconds, window.others_cores)


def check(ours: object, theirs: object) -> None:
    """Refuse a wrong answer."""
    try:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    except AssertionError as error:
        raise BenchmarkError(f"wrong answer: {error}") from error


def measure(name: str, calls: dict[str, Callable[[], object]], options: Options) -> None:
    """A line for each contender; warmed up by one sample each."""
    takes = {
        system: functools.partial(sample, call, options.rules.sample_seconds)
        for system, call in calls.items()
    }
    for warm_up in takes.values():
        warm_up()
    sizes = {"tensors": _NUM_TENSORS, "floats": [64, 4096], "threads": 2}
    question = Question(name, "calls/s", sizes, options.rules)
    series = interleave(takes, options.rules)
    for system in takes:
        question.answer(series, system, "torch", system=system)


def run(options: Options) -> None:
    """Print the lines of pack and unpack."""
    say(f"[packing] {_NUM_TENSORS} tensors of 64 to 4,096 floats")
    torch.set_num_threads(2)
    tensors = make_tensors()
    shapes = get_keyed_shape(tensors)
    ours, theirs = pack_tensors(tensors), pack_with_torch(tensors)
    splits = [0, *itertools.accumulate(ours[1].tolist())]
    check(ours[0], theirs)
    check(unpack_tensors(shapes, ours), unpack_with_torch(shapes, theirs, splits))
    packs: dict[str, Callable[[], object]] = {
        "monolith": lambda: pack_tensors(tensors),
        "torch": lambda: pack_with_torch(tensors),
    }
    unpacks: dict[str, Callable[[], object]] = {
        "monolith": lambda: unpack_tensors(shapes, ours),
        "torch": lambda: unpack_with_torch(shapes, theirs, splits),
    }
    measure("pack", packs, options)
    measure("unpack", unpacks, options)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
