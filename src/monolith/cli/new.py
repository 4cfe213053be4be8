"""`monolith new`: write a first task file."""

import re
from pathlib import Path
from typing import Annotated

import typer

from monolith.cli.console import fail, say

app = typer.Typer(add_completion=False)


@app.command(
    help="Example: monolith new ranker.py\n\nWrite a task file that trains without changes.",
    short_help="Write a task file that trains without changes.",
)
def new(
    path: Annotated[Path, typer.Argument(help="Task file to write, such as ranker.py.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a task file that trains without changes."""
    if path.suffix != ".py":
        fail(f"expected a file that ends in .py, got {str(path)!r}", status=2)
    if path.exists() and not force:
        fail(f"expected a new file, got {str(path)!r}, which exists; replace it with --force")
    if not path.parent.is_dir():
        fail(f"expected a folder for {str(path)!r}, got none at {str(path.parent)!r}")
    path.write_text(task_text(path), encoding="utf-8")
    say(f"wrote {path}; next: monolith train {path}")


def task_text(path: Path) -> str:
    """Return the template with the names of a file: `my_ads.py` has the class `MyAds`."""
    words = [word for word in re.split(r"[^0-9a-zA-Z]+", path.stem) if word]
    name = "".join(word[:1].upper() + word[1:] for word in words)
    text = (Path(__file__).parent / "tasks" / "_task_template.py").read_text(encoding="utf-8")
    text = text.replace("ranker.py", str(path))
    return text.replace("Ranker", name) if name.isidentifier() else text
