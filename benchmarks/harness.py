"""How a measurement is taken and reported. Needs the standard library alone: peers share it.

Contenders take turns (A/B/A/B); a sample is taken again while other processes use the processor;
every result is one JSON line on stdout, talk goes to stderr.
"""

import contextlib
import ctypes
import json
import mmap
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_RETRY_PAUSE_SECONDS = 0.5
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BenchmarkError(Exception):
    """A benchmark gave a wrong answer or could not run."""


@dataclass(frozen=True)
class Rules:
    """When a sample counts.

    Args:
        num_runs: samples of each contender.
        sample_seconds: least length of a sample.
        max_others_cores: a sample is taken again while other processes use more than this.
        max_discards: samples of one measurement that may be taken again, all contenders together.
    """

    num_runs: int = 5
    sample_seconds: float = 0.4
    max_others_cores: float = 0.15
    max_discards: int = 20


QUICK = Rules(sample_seconds=0.05, max_discards=0)


@dataclass(frozen=True)
class Sample:
    """One timed run: its result, and the cores that other processes used meanwhile."""

    value: float
    others_cores: float = 0.0


@dataclass
class Series:
    """The samples of one contender that count."""

    values: list[float] = field(default_factory=list)
    others_cores: list[float] = field(default_factory=list)
    num_discarded: int = 0

    def extend(self, other: "Series") -> None:
        """Take over the samples of a later part of the same measurement."""
        self.values += other.values
        self.others_cores += other.others_cores
        self.num_discarded += other.num_discarded


def _busy_seconds() -> float:
    """Seconds that all processors worked, for whomever (a hypervisor's theft included)."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND


@dataclass
class Window:
    """The length of a `timed` block, and the cores that other processes used during it."""

    seconds: float = 0.0
    others_cores: float = 0.0


@contextlib.contextmanager
def timed() -> Iterator[Window]:
    """Time a `with` block; the window is filled when the block ends."""
    window = Window()
    busy, own, start = _busy_seconds(), time.process_time(), time.perf_counter()
    yield window
    window.seconds = time.perf_counter() - start
    others = (_busy_seconds() - busy) - (time.process_time() - own)
    window.others_cores = max(0.0, others / window.seconds)


def interleave(contenders: Mapping[str, Callable[[], Sample]], rules: Rules) -> dict[str, Series]:
    """Samples of the contenders in turns: A, B, A, B, ...

    Args:
        contenders: by name, what takes one sample. They are warmed up and checked already.
        rules: when a sample counts.
    """
    result = {name: Series() for name in contenders}
    left = rules.max_discards
    for _ in range(rules.num_runs):
        for name, take in contenders.items():
            series, sample = result[name], take()
            while sample.others_cores > rules.max_others_cores and left > 0:
                left -= 1
                series.num_discarded += 1
                time.sleep(_RETRY_PAUSE_SECONDS)
                sample = take()
            series.values.append(sample.value)
            series.others_cores.append(sample.others_cores)
    return result


def ratios(series: Mapping[str, Series], ours: str, others: Sequence[str]) -> dict[str, float]:
    """Ours / other, the median over the turns: a slow minute of the machine hits both."""
    return {
        other: statistics.median(
            a / b for a, b in zip(series[ours].values, series[other].values, strict=True)
        )
        for other in others
    }


@dataclass(frozen=True)
class Measurement:
    """A result and what it was measured on.

    Args:
        name: the stage, for example "lookup".
        system: what was measured.
        unit: unit of the series.
        series: the samples.
        sizes: rows, dim, batch, distribution, hit_rate, threads: those that apply.
        versions: of the system and what it runs on.
        ratios: this result / that of a baseline of the same run, by the baseline's name.
        notes: further numbers of the stage.
    """

    name: str
    system: str
    unit: str
    series: Series
    sizes: Mapping[str, Any]
    versions: Mapping[str, str]
    ratios: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def line(self, rules: Rules) -> dict[str, Any]:
        """The fields of the JSON line."""
        values, others = self.series.values, max(self.series.others_cores, default=0.0)
        return {
            "name": self.name,
            "system": self.system,
            "median": _round(statistics.median(values)),
            "spread": [_round(min(values)), _round(max(values))],
            "unit": self.unit,
            "ratios": {name: _round(value) for name, value in self.ratios.items()},
            **self.sizes,
            **self.notes,
            "num_runs": len(values),
            "num_discarded": self.series.num_discarded,
            "others_cores": _round(others),
            "is_quiet": others <= rules.max_others_cores,
            "versions": dict(self.versions),
            **environment(),
        }


def emit(measurement: Measurement, rules: Rules) -> None:
    """Print one measurement as a JSON line."""
    print(json.dumps(measurement.line(rules)), flush=True)


def say(text: str) -> None:
    """Talk: stderr, so that stdout stays data."""
    print(text, file=sys.stderr, flush=True)


def environment() -> dict[str, Any]:
    """Machine and commit of a measurement."""
    described = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "commit": described.stdout.strip() or "unknown",
    }


def _cpu_model() -> str:
    """Name of the processor; virtual machines hide its generation, which family and model tell."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        pairs = [line.partition(":")[::2] for line in file.read().partition("\n\n")[0].splitlines()]
    fields = {key.strip(): value.strip() for key, value in pairs}
    name = fields.get("model name")
    if name is None:
        return platform.machine()
    return f"{name}, family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def available_bytes() -> int:
    """Memory that processes could still take without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        fields: Iterable[list[str]] = (line.split() for line in file)
        return next(int(words[1]) * 1024 for words in fields if words[0] == "MemAvailable:")


def resident_bytes() -> int:
    """Memory of this process that is in RAM, counted exactly."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        fields: Iterable[list[str]] = (line.split() for line in file)
        return next(int(words[1]) * 1024 for words in fields if words[0] == "Rss:")


def trimmed_bytes() -> int:
    """`resident_bytes` after malloc has given back what it keeps of freed call buffers."""
    ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes()


def touch_and_free(num_bytes: int) -> None:
    """Make the machine back `num_bytes` with real memory: a first touch is slow and not ours.

    Private memory on huge pages, as tables have it: small pages, once freed, are not what the
    system gives to huge ones.
    """
    size = min(num_bytes, int(available_bytes() * 0.9)) // _PAGE_BYTES * _PAGE_BYTES
    if size <= 0:
        return
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, size, _PAGE_BYTES):
            area[start] = 1
