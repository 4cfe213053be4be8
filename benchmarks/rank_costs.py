"""What a step costs a rank, and the formula of docs/scaling.md: 1, 2 and 4 ranks of one thread.

Each point of a small grid is a job of ranks, whose processor time is measured after all rows exist,
because the ranks share the cores of this machine. The terms below are fitted to the points by least
squares of relative errors, none below zero, and checked at three further points. The notes have the
parts of a step: those of the training thread, and `transport`, the threads of gloo.

    python -m benchmarks.rank_costs    measures, and prints the terms, the errors and the parts
"""

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.click_model import NUM_FEATURES
from benchmarks.harness import Series, say, timed
from benchmarks.job_costs import fit, predict
from benchmarks.job_task import Light, LightSettings, num_distinct
from benchmarks.question import Question
from benchmarks.ranks import trained
from benchmarks.stage import Options, run_stage

_NUM_WARM, _NUM_STEPS = 34, 60  # a round of the batches before the first measured step
_QUICK_STEPS = 6


@dataclass(frozen=True)
class Point:
    """A job of the grid: ranks, samples of a rank's step, width of rows, ids of a feature."""

    ranks: int
    batch: int
    dim: int
    rows: int
    num_bulk: int = 0


GRID = (
    Point(1, 512, 16, 200_000),
    Point(1, 4_096, 16, 200_000),
    Point(1, 2_048, 64, 200_000),
    Point(1, 512, 16, 50, num_bulk=1_000_000),
    Point(2, 512, 16, 200_000),
    Point(2, 4_096, 16, 200_000),
    Point(2, 4_096, 16, 50),
    Point(2, 2_048, 64, 200_000),
    Point(2, 2_048, 4, 200_000),
    Point(2, 512, 16, 50, num_bulk=1_000_000),
    Point(4, 512, 16, 200_000),
    Point(4, 4_096, 16, 200_000),
    Point(4, 1_024, 64, 200_000),
    Point(4, 512, 16, 50, num_bulk=300_000),
)
CHECKS = (
    Point(3, 2_048, 16, 200_000),
    Point(4, 1_024, 32, 20_000),
    Point(2, 3_000, 8, 2_000, num_bulk=500_000),
)
TERMS = (
    *("step", "exchange", "peer", "id_number", "key", "key_number"),
    *("sent_key", "sent_number", "dense_number", "sent_dense_number"),
)


def amounts(point: Point, distinct: float) -> dict[str, float]:
    """Return how often each term counts in a step of a rank.

    Args:
        point: The job.
        distinct: Distinct ids of a rank's batch, over all features.
    """
    others = (point.ranks - 1) / point.ranks
    return {
        "step": 1,
        "exchange": float(point.ranks > 1),
        "peer": point.ranks - 1,
        "id_number": point.batch * NUM_FEATURES * point.dim,
        "key": distinct,
        "key_number": distinct * point.dim,
        "sent_key": distinct * others,
        "sent_number": distinct * point.dim * others,
        "dense_number": point.num_bulk,
        "sent_dense_number": point.num_bulk * others,
    }


def sent_bytes(point: Point, distinct: float) -> dict[str, float]:
    """Return the bytes that a rank sends for tables in a step, without headers and padding."""
    others = distinct * (point.ranks - 1) / point.ranks
    return {"key": 8 * others, "row": 4 * point.dim * others, "gradient": 4 * point.dim * others}


@dataclass(frozen=True)
class Cost:
    """A point that was measured.

    Attributes:
        point: The job.
        amounts: How often each term counts.
        seconds: Processor time of a step of one rank.
        wall_seconds: Time of a step.
        parts: Share of each part in the processor time.
        bytes: Bytes that a rank has sent for tables in a step, by kind.
        others_cores: Cores that other programs used meanwhile.
    """

    point: Point
    amounts: Mapping[str, float]
    seconds: float
    wall_seconds: float
    parts: Mapping[str, float]
    bytes: Mapping[str, float]
    others_cores: float

    def describe(self) -> list[float]:
        """Return ranks, batch, dim, distinct ids, dense numbers, and milliseconds: CPU, wall."""
        point = self.point
        sizes = [point.ranks, point.batch, point.dim, round(self.amounts["key"]), point.num_bulk]
        return [*sizes, round(self.seconds * 1e3, 2), round(self.wall_seconds * 1e3, 2)]


def parts_of(answer: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of each part of a rank; `rest` is what the training thread has left."""
    parts = dict(answer["parts"])
    thread = parts.pop("thread")
    rest, transport = thread - sum(parts.values()), answer["cpu_seconds"] - thread
    return {**parts, "rest": rest, "transport": max(0.0, transport)}


def measure(point: Point, num_steps: int) -> Cost:
    """Measure the processor time of a step of each rank."""
    facts = vars(point) | {"prefetch": 0, "push": 0, "threads": 1, "with_parts": True}
    facts |= {"num_warm": _NUM_WARM, "num_steps": num_steps}
    distinct = num_distinct(Light(LightSettings(rows=point.rows, batch_size=point.batch)), 4)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    with timed() as window:
        answers = trained(point.ranks, facts)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = now.ru_utime + now.ru_stime - children.ru_utime - children.ru_stime
    others = max(0.0, window.others_cores - own / window.seconds)
    total = sum(answer["cpu_seconds"] for answer in answers)
    parts = [parts_of(answer) for answer in answers]
    shares = {name: sum(part[name] for part in parts) / total for name in parts[0]}
    counts = answers[0]["bytes"]  # of all steps, the first ones too
    sent = {kind: counts[f"{kind}_bytes"] / (_NUM_WARM + num_steps) for kind in ("key", "row")}
    sent["gradient"] = counts["gradient_bytes"] / (_NUM_WARM + num_steps)
    seconds = total / point.ranks / num_steps
    say(f"[rank_costs] {point}: {seconds * 1e3:.2f} ms of CPU a step, others {others:.2f} cores")
    wall = max(answer["seconds"] for answer in answers) / num_steps
    return Cost(point, amounts(point, distinct), seconds, wall, shares, sent, others)


def run(options: Options) -> None:
    """Print the terms, the largest error at the checks, and the parts of a step."""
    grid, checks = (GRID[::3], CHECKS[:1]) if options.is_quick else (GRID, CHECKS)
    num_steps = _QUICK_STEPS if options.is_quick else _NUM_STEPS
    measured = [measure(point, num_steps) for point in grid]
    tested = [measure(point, num_steps) for point in checks]
    terms = fit(TERMS, [cost.amounts for cost in measured], [cost.seconds for cost in measured])
    every = [*measured, *tested]
    errors = [round(predict(terms, cost.amounts) / cost.seconds - 1, 3) for cost in every]
    gaps = [
        cost.bytes[kind] / expected - 1
        for cost in every
        for kind, expected in sent_bytes(cost.point, cost.amounts["key"]).items()
        if expected
    ]
    largest_gap = max(abs(gap) for gap in gaps)
    notes = {
        "terms_ns": {term: float(f"{value * 1e9:.3g}") for term, value in terms.items()},
        "points": [cost.describe() for cost in every],
        "errors": errors,
        "num_checks": len(tested),
        "bytes_error": round(largest_gap, 3),
        "parts": [{n: round(share, 3) for n, share in cost.parts.items()} for cost in every],
    }
    largest = max(abs(error) for error in errors[len(measured) :])
    facts = {"features": NUM_FEATURES, "ranks": max(point.ranks for point in grid)}
    question = Question("rank_costs", "largest relative error", facts, options.rules)
    others = max(cost.others_cores for cost in every)
    question.answer({"fit": Series([largest], [others])}, "fit", notes=notes)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
