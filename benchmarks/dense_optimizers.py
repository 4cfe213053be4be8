"""Steps of dense optimizers beside torch's Adam(fused=True): time for 10 M parameters.

Shampoo runs on 1 M parameters in matrices, during its warm-up and after it; a sample is one period
of its preconditioners.
"""

import functools
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from benchmarks.harness import Sample, interleave, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from benchmarks.worker import check
from monolith.optim import AdamomOptimizer, RmspropOptimizer, ShampooOptimizer

_THREADS = 2
_RATE = 0.001
_BASELINE = "torch_adam"
Shapes = list[tuple[int, ...]]
Take = Callable[[], Sample]

_SHAPES: dict[str, Shapes] = {
    "one": [(10_000_000,)],
    "twenty": [(1000, 500)] * 20,
    "small": [(50, 20)] * 1000,
}
_MATRICES: Shapes = [(256, 256)] * 16
_PERIOD = 200  # Shampoo's default tau_1: steps between two computations of preconditioners


def parameters(shapes: Shapes) -> list[torch.nn.Parameter]:
    """Normal parameters with normal gradients; the same in every call."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return made


def adam(shapes: Shapes) -> torch.optim.Optimizer:
    """The baseline."""
    return torch.optim.Adam(parameters(shapes), lr=_RATE, fused=True)


def contenders(shapes: Shapes) -> dict[str, torch.optim.Optimizer]:
    """By name; each has parameters of its own."""
    return {
        _BASELINE: adam(shapes),
        "torch_rmsprop": torch.optim.RMSprop(
            parameters(shapes), lr=_RATE, momentum=0.9, foreach=True
        ),
        "adamom": AdamomOptimizer(parameters(shapes), learning_rate=_RATE),
        "rmsprop": RmspropOptimizer(parameters(shapes), learning_rate=_RATE),
        "rmsprop_v2": RmspropOptimizer(parameters(shapes), learning_rate=_RATE, use_v2=True),
    }


def check_first_steps() -> None:
    """Refuse wrong answers: the first step of each optimizer, by its formula in double."""
    for name, optimizer in contenders([(300, 7), (5,)]).items():
        if name.startswith("torch"):
            continue
        given = [p for group in optimizer.param_groups for p in group["params"]]
        before = [p.detach().double().numpy() for p in given]
        optimizer.step()
        for old, parameter in zip(before, given, strict=True):
            assert parameter.grad is not None
            g = parameter.grad.double().numpy()
            size = np.abs(g)
            change = {
                "adamom": 0.01 * g / np.sqrt(g**2 + 1e-6),
                "rmsprop": g / np.sqrt(0.001 * g**2 + 1e-8),
                "rmsprop_v2": g / (size + 1e-8),
            }[name]
            check(name, parameter.detach().numpy(), old - _RATE * change, tolerance=1e-5)


def sample(step: Callable[[], object], rule: Callable[[int, float], bool]) -> Sample:
    """Milliseconds of a step; the rule says, of steps and seconds, when to stop."""
    num_steps = 0
    with timed() as window:
        start = time.perf_counter()
        while not rule(num_steps, time.perf_counter() - start):
            step()
            num_steps += 1
    return Sample(1e3 * window.seconds / num_steps, window.others_cores)


def measure(options: Options, tensors: str, shapes: Shapes, takes: Mapping[str, Take]) -> None:
    """Print a line for each contender."""
    for warm_up in takes.values():
        warm_up()
    series = interleave(takes, options.rules)
    facts = {
        "tensors": tensors,
        "num_tensors": len(shapes),
        "num_parameters": sum(torch.Size(shape).numel() for shape in shapes),
        "threads": _THREADS,
    }
    question = Question("dense_optimizers", "ms/step", facts, options.rules)
    for name in takes:
        system = "torch" if name.startswith("torch") else "monolith"
        question.answer(series, name, _BASELINE, system=system, notes={"optimizer": name})


def run(options: Options) -> None:
    """Print a line for every optimizer and list of tensors."""
    torch.set_num_threads(_THREADS)
    check_first_steps()
    is_late = functools.partial(
        lambda seconds, _, spent: spent > seconds, options.rules.sample_seconds
    )
    for tensors, whole in _SHAPES.items():
        quick: Shapes = [(max(1, shape[0] // 100), *shape[1:]) for shape in whole]
        shapes = quick if options.is_quick else whole
        say(f"[dense_optimizers] {tensors}: {len(shapes)} tensors of shape {shapes[0]}")
        made = contenders(shapes)
        measure(
            options,
            tensors,
            shapes,
            {name: functools.partial(sample, each.step, is_late) for name, each in made.items()},
        )
    matrices: Shapes = [(16, 16)] if options.is_quick else _MATRICES
    say(f"[dense_optimizers] Shampoo: {len(matrices)} matrices of shape {matrices[0]}")
    takes = {_BASELINE: functools.partial(sample, adam(matrices).step, is_late)}
    for name, warmup in {"shampoo": 0, "shampoo_warming_up": 10**9}.items():
        each = ShampooOptimizer(parameters(matrices), learning_rate=_RATE, warmup=warmup)
        takes[name] = functools.partial(sample, each.step, lambda steps, _: steps == _PERIOD)
    measure(options, "matrices", matrices, takes)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
