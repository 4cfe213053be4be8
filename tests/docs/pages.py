"""Code blocks and tables of a page of documentation."""

import re

from tests.meta.tree import ROOT


def page(name):
    return (ROOT / name).read_text()


def blocks(text, language):
    """The fenced code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def first_cells(text, header):
    """First cell of every row of the table whose header line starts with `header`."""
    rows = iter(text.splitlines())
    for line in rows:
        if line.startswith(header):
            next(rows)  # the line of dashes
            break
    else:
        raise AssertionError(f"no table starts with {header!r}")
    cells = []
    for line in rows:
        if not line.startswith("|"):
            break
        cells.append(line.split("|")[1].strip().strip("`"))
    return cells
