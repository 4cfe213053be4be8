"""Writes the table in docs/drop_in.md from the facts that tests/nn/test_drop_in.py proves.

Run from the root of the repository: python -m tools.drop_in_table
"""

from pathlib import Path

from tools.page_table import rewrite

PAGE = Path(__file__).parents[1] / "docs" / "drop_in.md"
HEADER = "| subject | the torch class | ours |\n|---|---|---|\n"


def table() -> str:
    """The whole table in Markdown."""
    from tests.nn.test_drop_in import facts

    return HEADER + "".join(f"| {' | '.join(fact)} |\n" for fact in facts())


def main() -> None:
    """Rewrites the page."""
    rewrite(PAGE, table())


if __name__ == "__main__":
    main()
