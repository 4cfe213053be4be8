"""Writes the table in docs/reference/params.md: python -m tools.params_table"""

import enum
from collections.abc import Iterator
from pathlib import Path

from monolith.base_model import MonolithModel
from monolith.core.hyperparams import Params
from tools.page_table import rewrite

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "params.md"
HEADER = "| parameter | default | what it does |\n|---|---|---|\n"


def rows(params: Params, prefix: str = "") -> Iterator[str]:
    """A line of the table for each parameter, nested ones by their dotted names."""
    for name, value in params.items():
        if isinstance(value, Params):
            yield from rows(value, f"{prefix}{name}.")
        elif name != "cls":
            default = f"ExportMode.{value.name}" if isinstance(value, enum.Enum) else repr(value)
            yield f"| `{prefix}{name}` | `{default}` | {params.describe(name)} |\n"


def table() -> str:
    """The table of all parameters."""
    return HEADER + "".join(rows(MonolithModel.params()))


def main() -> None:
    """Rewrites the page."""
    rewrite(PAGE, table())


if __name__ == "__main__":
    main()
