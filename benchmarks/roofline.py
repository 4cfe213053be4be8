"""Where the time goes: lookup and Adagrad apply against bare gathers of the lines they touch.

And a step against one that does the same to the same memory without keys, index and locks. Dim 16,
uniform keys, no Python in the timed part; builds `roofline.cpp` on first use.
"""

import json
import resource
import statistics
import subprocess
import sys

import monolith
from benchmarks.harness import ROOT, BenchmarkError, Measurement, Series, emit, ratios, say, timed
from benchmarks.stage import Options, run_stage

_BUILD = ROOT / "build" / "roofline"
_LINES = {"lookup": 2, "apply": 5}  # cache lines per key
_VERSIONS = {"monolith": monolith.__version__}


def build() -> None:
    """Compile the program beside the other build outputs."""
    say(f"[roofline] building {_BUILD.relative_to(ROOT)}")
    configure = ["cmake", "-S", str(ROOT), "-B", str(_BUILD), "-DMONOLITH_BENCHMARKS=ON"]
    for command in (configure, ["cmake", "--build", str(_BUILD), "--target", "roofline"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchmarkError(f"[roofline] {' '.join(command)} failed:\n{done.stderr}")


def run_program(rows: int, threads: int) -> tuple[dict[str, float], float]:
    """Nanoseconds by name, and the cores that other processes used meanwhile."""
    command = [str(_BUILD / "roofline"), str(rows), "10", str(threads)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with timed() as window:
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchmarkError(f"[roofline] {' '.join(command)} gave {done.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), max(0.0, window.others_cores - own / window.seconds)


def measure(rows: int, threads: int, num_runs: int, options: Options) -> None:
    """Print a line for lookup and one for apply."""
    say(f"[roofline] {rows:,} rows, {threads} thread{'s' * (threads > 1)}")
    series = {name: Series() for name in ("line", "bare_step", *_LINES)}
    for _ in range(num_runs):
        nanoseconds, others_cores = run_program(rows, threads)
        for name, values in series.items():
            values.extend(Series([nanoseconds[name]], [others_cores]))
    line = statistics.median(series["line"].values)
    for name, lines in _LINES.items():
        found = {"gather_of_its_lines": statistics.median(series[name].values) / (lines * line)}
        if name == "apply":
            found |= ratios(series, name, ["bare_step"])
        measurement = Measurement(
            name=f"roofline_{name}",
            system="monolith",
            unit="ns/key",
            series=series[name],
            sizes={"rows": rows, "dim": 16, "batch": 65_536, "threads": threads},
            versions=_VERSIONS,
            ratios=found,
            notes={"lines_per_key": lines, "ns_per_line": line},
        )
        emit(measurement, options.rules)


def run(options: Options) -> None:
    """Two sizes of table, on one thread and on two."""
    build()
    for rows in (200_000,) if options.is_quick else (2_000_000, 20_000_000):
        for threads in (1, 2):
            measure(rows, threads, 1 if options.is_quick else 5, options)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
