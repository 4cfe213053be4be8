"""What stages share whose tables live in their own process: keys, versions, and printed lines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import monolith
from benchmarks import workload as work
from benchmarks.harness import Measurement, Rules, Sample, Series, emit, interleave, ratios
from benchmarks.workload import Workload

VERSIONS = {"monolith": monolith.__version__, "torch": torch.__version__}


def key_batches(workload: Workload) -> list[torch.Tensor]:
    """Keys of the table, drawn uniformly; calls cycle through the batches."""
    drawn = work.index_batches(workload, "uniform")
    return [torch.from_numpy(work.keys_of(indices)) for indices in drawn]


@dataclass(frozen=True)
class Question:
    """What is measured, and on what.

    Args:
        name: the measurement.
        unit: unit of its samples.
        sizes: of the measurement.
        rules: when a sample counts.
        versions: of what is measured.
    """

    name: str
    unit: str
    sizes: Mapping[str, Any]
    rules: Rules
    versions: Mapping[str, str] = field(default_factory=lambda: VERSIONS)

    def measure(
        self,
        takes: Mapping[str, Callable[[], Sample]],
        notes: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Samples in turns; one line, of the first, with its ratio to each of the others.

        Args:
            takes: by name, what takes one sample, warmed up.
            notes: further numbers, asked for after the last sample.
        """
        series = interleave(takes, self.rules)
        ours, *others = takes
        self.answer(series, ours, *others, notes=notes())

    def answer(
        self,
        series: Mapping[str, Series],
        ours: str,
        *baselines: str,
        system: str = "monolith",
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """The line of one series, with its ratio to each baseline but itself."""
        others = [baseline for baseline in baselines if baseline != ours]
        measurement = Measurement(
            name=self.name,
            system=system,
            unit=self.unit,
            series=series[ours],
            sizes=self.sizes,
            versions=self.versions,
            ratios=ratios(series, ours, others),
            notes=notes or {},
        )
        emit(measurement, self.rules)
