"""Lookup of present keys, beside `nn.EmbeddingBag`'s forward pass and the peers'."""

import sys

from benchmarks.stage import Comparison, Options, matrix, run_stage

PEERS = [
    (2, 16, "tfra"),
    (2, 16, "fbgemm"),
    (2, 64, "tfra"),
    (2, 64, "fbgemm"),
    (20, 16, "tfra"),
    (20, 16, "fbgemm"),
    (20, 64, "fbgemm"),
    (10, 64, "tfra"),  # 20 M rows of TFRA would not fit beside the others
]


def run(options: Options) -> None:
    """Print one line per size, distribution and system."""
    for case in matrix(options, PEERS):
        Comparison("lookup", case, options.rules).run()


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
