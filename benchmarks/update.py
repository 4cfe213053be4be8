"""A training step of a table: lookup, sum of the gradients of equal keys, one Adagrad step.

Beside `nn.EmbeddingBag(sparse=True)` with torch's Adagrad, and the peers.
"""

import sys

from benchmarks.stage import Comparison, Options, matrix, run_stage

PEERS = [
    (2, 16, "tfra"),
    (2, 16, "tfra_packed"),
    (2, 16, "fbgemm"),
    (2, 64, "tfra"),
    (2, 64, "fbgemm"),
    (20, 16, "tfra"),
    (20, 16, "fbgemm"),
    (20, 64, "fbgemm"),
]


def run(options: Options) -> None:
    """Print one line per size, distribution and system."""
    for case in matrix(options, PEERS):
        Comparison("update", case, options.rules).run()


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
