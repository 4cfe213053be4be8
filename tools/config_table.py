"""Writes the table in docs/reference/training_config.md: python -m tools.config_table"""

from dataclasses import fields
from pathlib import Path

from monolith.native_training.cpu_training import DistributedCpuTrainingConfig
from tools.page_table import rewrite

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "training_config.md"
HEADER = "| field | default | what it does |\n|---|---|---|\n"


def table() -> str:
    """The table of all fields."""
    rows = []
    for field in fields(DistributedCpuTrainingConfig):
        text = field.metadata.get("meaning") or f"refused: needs {field.metadata['needs']}"
        rows.append(f"| `{field.name}` | `{field.default!r}` | {text} |\n")
    return HEADER + "".join(rows)


def main() -> None:
    """Rewrites the page."""
    rewrite(PAGE, table())


if __name__ == "__main__":
    main()
