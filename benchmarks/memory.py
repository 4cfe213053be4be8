"""Memory per key, dim 16: RSS minus RSS before the table existed, at 20 sizes of a growing table.

A fresh process for each optimizer; the baseline is the payload, the floats themselves. Before every
reading malloc gives back free memory, as in `eviction.py` and `precision.py`: it keeps buffers of
past calls, the benchmark's own arrays among them, however small the table is. `per_key_untrimmed`
is a second run in which it keeps them: then 5 to 10 MB more or less, by chance.
"""

import contextlib
import sys

from benchmarks.harness import Measurement, Rules, Series, emit, say
from benchmarks.processes import WorkerProcess
from benchmarks.stage import QUICK_ROWS, Options, run_stage

_DIM = 16
_NUM_SIZES = 20
_BATCH = 65_536


def measure(optimizer: str, sizes: list[int], rules: Rules) -> None:
    """Grow a table through the sizes and print one line."""
    say(f"[memory] {optimizer}: {sizes[0]:,} to {sizes[-1]:,} keys")
    with_state = optimizer == "adagrad"
    replies = []
    for is_trimmed in (True, False):
        with contextlib.closing(WorkerProcess("monolith")) as worker:
            options = {"batch": _BATCH, "with_state": with_state, "is_trimmed": is_trimmed}
            replies.append(worker.call("grow", sizes=sizes, dim=_DIM, **options))
    per_key, untrimmed = (
        [taken / size for taken, size in zip(reply["taken_bytes"], sizes, strict=True)]
        for reply in replies
    )
    payload = 4 * _DIM * (2 if with_state else 1)
    measurement = Measurement(
        name="memory",
        system="monolith",
        unit="B/key",
        series=Series(values=per_key),
        sizes={"rows": sizes, "dim": _DIM, "batch": _BATCH},
        versions=replies[0]["versions"],
        ratios={"payload": max(per_key) / payload},
        notes={
            "optimizer": optimizer,
            "per_key": [round(value, 1) for value in per_key],
            "per_key_untrimmed": [round(value, 1) for value in untrimmed],
        },
    )
    emit(measurement, rules)


def run(options: Options) -> None:
    """Print one line per optimizer; the target is for the maximum."""
    step = QUICK_ROWS // _NUM_SIZES if options.is_quick else 1_000_000
    sizes = [step * number for number in range(1, _NUM_SIZES + 1)]
    for optimizer in ("sgd", "adagrad"):
        measure(optimizer, sizes, options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
