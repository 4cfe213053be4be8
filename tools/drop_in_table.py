"""Writes the table in docs/drop_in.md from the facts that tests/nn/test_drop_in.py proves.

Run from the root of the repository: python -m tools.drop_in_table
"""

from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "drop_in.md"
BEGIN, END = "<!-- begin table -->\n", "<!-- end table -->\n"
HEADER = "| subject | the torch class | ours |\n|---|---|---|\n"


def table() -> str:
    """The whole table in Markdown."""
    from tests.nn.test_drop_in import facts

    return HEADER + "".join(f"| {' | '.join(fact)} |\n" for fact in facts())


def page(text: str) -> str:
    """The page with the table of the tests."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"


def main() -> None:
    """Rewrites the page."""
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
