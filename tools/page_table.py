"""Puts a generated table between the two marks of a page."""

from pathlib import Path

BEGIN, END = "<!-- begin table -->\n", "<!-- end table -->\n"


def with_table(text: str, table: str) -> str:
    """The text of a page with another table."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}{table}{END}{rest.split(END)[1]}"


def rewrite(page: Path, table: str) -> None:
    """Writes the table into the page."""
    page.write_text(with_table(page.read_text(), table))
