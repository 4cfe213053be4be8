"""Writes the tables of configs in docs/reference: python -m tools.config_table"""

import enum
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from monolith.native_training.cpu_training import DistributedCpuTrainingConfig
from monolith.native_training.runner_utils import RunnerConfig
from tools.page_table import rewrite

PAGES = Path(__file__).parents[1] / "docs" / "reference"
HEADER = "| field | default | what it does |\n|---|---|---|\n"


def table() -> str:
    """The table of all fields of a job."""
    return _table(list(fields(DistributedCpuTrainingConfig)))


def runner_table() -> str:
    """The table of the fields that a runner has beside, or that mean more there."""
    common = {field.name: field.metadata for field in fields(DistributedCpuTrainingConfig)}
    return _table([f for f in fields(RunnerConfig) if f.metadata != common.get(f.name)])


def _table(listed: "list[Field[Any]]") -> str:
    rows = []
    for field in listed:
        text = field.metadata.get("meaning") or f"refused: needs {field.metadata['needs']}"
        default = field.default
        shown = default.name if isinstance(default, enum.Enum) else repr(default)
        rows.append(f"| `{field.name}` | `{shown}` | {text} |\n")
    return HEADER + "".join(rows)


def main() -> None:
    """Rewrites the pages."""
    rewrite(PAGES / "training_config.md", table())
    rewrite(PAGES / "runner.md", runner_table())


if __name__ == "__main__":
    main()
