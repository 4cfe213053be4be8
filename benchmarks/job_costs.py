"""What a step of a job costs at a worker and at the servers, and the formulas of docs/scaling.md.

Each point of a small grid is a job of one worker, whose processor time is measured for a second
after all rows exist. The terms below are fitted to the points by least squares of relative errors,
none below zero, and checked at three further points, one of them with two workers.

    python -m benchmarks.job_costs    measures, and prints the terms and the errors
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.click_model import NUM_FEATURES
from benchmarks.harness import Series, say
from benchmarks.job_processes import processes
from benchmarks.job_task import Light, LightSettings, num_distinct
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage

_WARM_SECONDS, _SECONDS = 1.5, 2.0


@dataclass(frozen=True)
class Point:
    """A job of the grid: servers, samples of a step, width of rows, ids of a feature."""

    servers: int
    batch: int
    dim: int
    rows: int
    num_bulk: int = 0
    workers: int = 1

    @property
    def task(self) -> dict[str, Any]:
        """Settings of the task."""
        return {
            "batch_size": self.batch,
            "dim": self.dim,
            "rows": self.rows,
            "num_bulk": self.num_bulk,
        }


GRID = (
    Point(1, 512, 16, 200_000),
    Point(2, 512, 16, 200_000),
    Point(4, 512, 16, 200_000),
    Point(2, 512, 16, 50),
    Point(2, 4_096, 16, 50),
    Point(2, 4_096, 16, 200_000),
    Point(2, 2_048, 64, 200_000),
    Point(2, 2_048, 64, 50),
    Point(2, 2_048, 4, 200_000),
    Point(1, 512, 16, 50, num_bulk=1_000_000),
    Point(2, 512, 16, 50, num_bulk=300_000),
)
CHECKS = (
    Point(8, 1_024, 32, 20_000),
    Point(2, 3_000, 8, 2_000, num_bulk=500_000),
    Point(2, 2_048, 16, 200_000, workers=2),
)
WORKER_TERMS = ("step", "server", "id", "id_number", "key", "key_number", "dense_number")
SERVER_TERMS = ("server", "id", "key", "key_number", "dense_number")


def amounts(point: Point, distinct: float) -> dict[str, float]:
    """Return how often each term counts in a step.

    Args:
        point: The job.
        distinct: Distinct ids of a batch, over all features.
    """
    ids = point.batch * NUM_FEATURES
    return {
        "step": 1,
        "server": point.servers,
        "id": ids,
        "id_number": ids * point.dim,
        "key": distinct,
        "key_number": distinct * point.dim,
        "dense_number": point.num_bulk,
    }


def fit(
    terms: Sequence[str], rows: Sequence[Mapping[str, float]], seconds: Sequence[float]
) -> dict[str, float]:
    """Return the seconds of each term: least squares of relative errors, none below zero."""
    matrix = np.array([[row[term] for term in terms] for row in rows]) / np.array(seconds)[:, None]
    kept = list(range(len(terms)))
    while True:  # leave out the most negative term until none is
        solution = np.linalg.lstsq(matrix[:, kept], np.ones(len(rows)), rcond=None)[0]
        scaled = solution * np.linalg.norm(matrix[:, kept], axis=0)
        if scaled.min() >= 0:
            break
        kept.pop(int(scaled.argmin()))
    found = dict(zip((terms[number] for number in kept), solution.tolist(), strict=True))
    return {term: found.get(term, 0.0) for term in terms}


def predict(terms: Mapping[str, float], row: Mapping[str, float]) -> float:
    """Return the seconds of a step."""
    return sum(seconds * row[term] for term, seconds in terms.items())


@dataclass(frozen=True)
class Cost:
    """A point that was measured: amounts of the terms, and seconds of a step by role."""

    point: Point
    amounts: Mapping[str, float]
    seconds: Mapping[str, float]

    def describe(self, role: str) -> list[float]:
        """Return servers, workers, batch, dim, distinct ids, dense numbers, and milliseconds."""
        point, distinct = self.point, round(self.amounts["key"])
        sizes = [point.servers, point.workers, point.batch, point.dim, distinct, point.num_bulk]
        return [*sizes, round(self.seconds[role] * 1e3, 2)]


def measure(point: Point) -> Cost:
    """Measure the processor time of a step of a job."""
    distinct = num_distinct(Light(LightSettings(**point.task)), 4)
    with processes(point.servers, point.workers, point.task) as run:
        run.train(_WARM_SECONDS)  # every id has a row
        run.train(_SECONDS)
        costs = run.costs[-1]
        run.stop()
    worker, server = costs.worker_seconds / costs.num_steps, costs.server_seconds / costs.num_steps
    say(f"[job_costs] {point}: {worker * 1e3:.2f} ms at the worker, {server * 1e3:.2f} at servers")
    return Cost(point, amounts(point, distinct), {"worker": worker, "server": server})


def run(options: Options) -> None:
    """Print the terms of worker and servers, and the largest error at the checks."""
    grid, checks = (GRID[::4], CHECKS[:1]) if options.is_quick else (GRID, CHECKS)
    measured, tested = [measure(point) for point in grid], [measure(point) for point in checks]
    roles = {"worker": WORKER_TERMS, "server": SERVER_TERMS}
    for role, names in roles.items():
        seconds = [cost.seconds[role] for cost in measured]
        terms = fit(names, [cost.amounts for cost in measured], seconds)
        errors = [
            round(predict(terms, cost.amounts) / cost.seconds[role] - 1, 3)
            for cost in (*measured, *tested)
        ]
        notes = {
            "terms_ns": {term: float(f"{value * 1e9:.3g}") for term, value in terms.items()},
            "points": [cost.describe(role) for cost in (*measured, *tested)],
            "errors": errors,
            "num_checks": len(tested),
        }
        largest = max(abs(error) for error in errors[len(measured) :])
        series = {"fit": Series([largest], [0.0])}
        facts = {"features": NUM_FEATURES, "servers": max(point.servers for point in grid)}
        question = Question(f"job_costs_{role}", "largest relative error", facts, options.rules)
        question.answer(series, "fit", notes=notes)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
