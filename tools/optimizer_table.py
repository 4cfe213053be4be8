"""Writes the table in docs/optimizers.md from the optimizer classes."""

import dataclasses
import inspect
import re
from pathlib import Path

from monolith.table import optimizers
from tools.page_table import rewrite

PAGE = Path(__file__).parents[1] / "docs" / "optimizers.md"
HEADER = "| optimizer | state, bytes per row | update | options |\n|---|---|---|---|\n"


def optimizer_classes() -> list[type[optimizers.Optimizer]]:
    """Every sparse optimizer, by name."""
    classes = (getattr(optimizers, name) for name in optimizers.__all__)
    found = [c for c in classes if inspect.isclass(c) and not inspect.isabstract(c)]
    return sorted(
        (c for c in found if issubclass(c, optimizers.Optimizer)), key=lambda c: c.__name__
    )


def update(cls: type[optimizers.Optimizer]) -> str:
    """The formula: the fenced block of the docstring."""
    match = re.search(r"```\n(.*?)\n\s*```", inspect.getdoc(cls) or "", re.S)
    assert match is not None, f"{cls.__name__} has no formula in its docstring"
    lines = [line.strip().replace("|", "\\|") for line in match[1].splitlines()]
    return "<br>".join(f"`{line}`" for line in lines)


def state(cls: type[optimizers.Optimizer]) -> str:
    """The state columns and their bytes for dim d."""
    dims = (1,) if cls is optimizers.BatchSoftmax else (1, 2)
    at = [sum(column.num_bytes for column in cls().state(dim)) for dim in dims]
    slope = at[-1] - at[0]
    terms = [f"{slope} d" if slope else "", str(at[0] - slope) if at[0] - slope else ""]
    names = ", ".join(f"`{column.name}`" for column in cls().state(1))
    return f"{' + '.join(filter(None, terms))}: {names}" if names else "0"


def options(cls: type[optimizers.Optimizer]) -> str:
    """Names and defaults; those that take only their default are left out."""
    fields = [f for f in dataclasses.fields(cls) if f.init and "is_refused" not in f.metadata]
    return ", ".join(f"`{field.name}={field.default}`" for field in fields)


def table() -> str:
    """The whole table in Markdown."""
    rows = (
        f"| `{cls.__name__}` | {state(cls)} | {update(cls)} | {options(cls)} |\n"
        for cls in optimizer_classes()
    )
    return HEADER + "".join(rows)


def main() -> None:
    """Rewrites the page."""
    rewrite(PAGE, table())


if __name__ == "__main__":
    main()
