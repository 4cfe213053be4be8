"""Steps of dense optimizers beside torch's Adam(fused=True): time for 10 M parameters."""

import functools
import sys
import time
from collections.abc import Callable

import torch

from benchmarks.harness import Sample, interleave, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage

_THREADS = 2
_RATE = 0.001
_BASELINE = "torch_adam"
_SHAPES = {
    "one": [(10_000_000,)],
    "twenty": [(1000, 500)] * 20,
    "small": [(50, 20)] * 1000,
}
_QUICK = {"twenty": [(100, 50)] * 20}

Step = Callable[[], object]


def parameters(shapes: list[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    """Normal parameters with normal gradients; the same in every call."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return made


def contenders(shapes: list[tuple[int, ...]]) -> dict[str, torch.optim.Optimizer]:
    """By name; each has parameters of its own."""
    return {
        _BASELINE: torch.optim.Adam(parameters(shapes), lr=_RATE, fused=True),
        "torch_rmsprop": torch.optim.RMSprop(
            parameters(shapes), lr=_RATE, momentum=0.9, foreach=True
        ),
    }


def sample(step: Step, seconds: float) -> Sample:
    """Milliseconds of a step."""
    num_steps = 0
    with timed() as window:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            step()
            num_steps += 1
    return Sample(1e3 * window.seconds / num_steps, window.others_cores)


def run(options: Options) -> None:
    """Print a line for every optimizer and list of tensors."""
    torch.set_num_threads(_THREADS)
    for tensors, shapes in (_QUICK if options.is_quick else _SHAPES).items():
        sizes = [torch.Size(shape).numel() for shape in shapes]
        say(f"[dense_optimizers] {len(sizes)} tensors, {sum(sizes):,} parameters")
        takes = {
            name: functools.partial(sample, optimizer.step, options.rules.sample_seconds)
            for name, optimizer in contenders(shapes).items()
        }
        for warm_up in takes.values():
            warm_up()
        series = interleave(takes, options.rules)
        facts = {
            "tensors": tensors,
            "num_tensors": len(sizes),
            "num_parameters": sum(sizes),
            "threads": _THREADS,
        }
        question = Question("dense_optimizers", "ms/step", facts, options.rules)
        for name in takes:
            system = "torch" if name.startswith("torch") else "monolith"
            question.answer(series, name, _BASELINE, system=system, notes={"optimizer": name})


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
