"""Keeps the runs of a stage: machine, commit, date and figures of each, the newest last."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import environment

Figure = Mapping[str, Any]
Run = Mapping[str, Any]

# Fields that tell the figures of a stage apart; figures that agree in all of them are numbered.
_SIZES = tuple(
    """
    name system optimizer precision distribution model rows dim tables features servers workers
    batch threads hit_rate bag_size ids ids_per_cell tensors num_tensors samples depth capacity
    window dictionary warm_memory lines_per_key
    """.split()  # noqa: SIM905
)
_OF_RUN = ("cpu", "cores", "commit")


def describe_run(figures: Sequence[Figure], commit: str) -> dict[str, Any]:
    """Return a run of today on this machine."""
    machine = environment()
    return {
        "machine": f"{machine['cpu']}, {machine['cores']} cores",
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "figures": [without_run(figure) for figure in figures],
    }


def without_run(figure: Figure) -> dict[str, Any]:
    """Return a figure without the fields that its run has."""
    return {key: value for key, value in figure.items() if key not in _OF_RUN}


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Read the runs of a stage; none if there is no file."""
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def write_runs(path: Path, runs: Sequence[Run]) -> None:
    """Replace the file of a stage: JSON with a line for each figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".new")
    text = ",\n".join(map(_run_text, runs))
    partial.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    partial.replace(path)


def add_run(path: Path, run: Run) -> None:
    """Append a run to those of its stage."""
    write_runs(path, [*read_runs(path), run])


def table(stage: str, runs: Sequence[Run]) -> str:
    """Show the median of every figure in every run, the oldest run first."""
    if not runs:
        return f"{stage}: no recorded runs"
    labels = [_labels(run["figures"]) for run in runs]
    shared = set.intersection(*(set(words) for of_run in labels for words in of_run))
    medians: dict[str, list[str]] = {}
    for number, (run, of_run) in enumerate(zip(runs, labels, strict=True)):
        for figure, words in zip(run["figures"], of_run, strict=True):
            label = " ".join(word for word in words if word not in shared)
            row = medians.setdefault(f"{label} [{figure['unit']}]", ["-"] * len(runs))
            row[number] = f"{figure['median']:g}"
    heads = [
        f"{number}: {run['date']}, commit {_short(run['commit'])}, {run['machine']}"
        for number, run in enumerate(runs, 1)
    ]
    numbers = [str(number) for number in range(1, len(runs) + 1)]
    width = max(map(len, [stage, *medians]))
    rows = [(stage, numbers), *medians.items()]
    return "\n".join(
        [*heads, *(label.ljust(width) + "".join(f"{v:>11}" for v in row) for label, row in rows)]
    )


def _labels(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """What tells the figures of a run apart, as words."""
    labels: list[tuple[str, ...]] = []
    for figure in figures:
        words = tuple(
            str(figure[key]) if isinstance(figure[key], str) else f"{key}={figure[key]}"
            for key in _SIZES
            if key in figure
        )
        same = sum(label[: len(words)] == words for label in labels)
        labels.append((*words, f"#{same + 1}") if same else words)
    return labels


def _short(commit: str) -> str:
    return commit[:7] if len(commit) == 40 else commit


def _run_text(run: Run) -> str:
    head = json.dumps({key: value for key, value in run.items() if key != "figures"})
    figures = ",\n".join(f"  {json.dumps(figure)}" for figure in run["figures"])
    return f' {head[:-1]}, "figures": [\n{figures}\n ]}}'
