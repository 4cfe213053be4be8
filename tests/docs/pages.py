"""Code blocks and tables of a page of documentation."""

import doctest
import re
import shlex

from tests.cli.run import run
from tests.meta.tree import ROOT


def page(name):
    return (ROOT / name).read_text()


def blocks(text, language):
    """The fenced code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def run_snippets(name):
    """Runs the examples in the Python blocks of a page: how many, and a text of what went wrong."""
    text = "\n".join(blocks(page(name), "python"))
    examples = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    problems = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    return runner.run(examples, out=problems.append).attempted, "".join(problems)


def console_cases(block):
    """The commands of a console block, each with what it prints."""
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)


def check_command(capsys, monkeypatch, command, shown):
    """Run a command in this process; it prints what the page shows, and fails where that does."""
    program, *arguments = shlex.split(command)
    ran = run(capsys, monkeypatch, *arguments)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    printed = f"{ran.out.strip()}\n{ran.err}".strip()
    assert program == "monolith"
    assert doctest.OutputChecker().check_output(shown.strip(), printed, flags), printed
    assert (ran.status > 0) == ("error: " in shown)


def first_rows(text, header):
    """The cells of every row of the table whose header line starts with `header`."""
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
        cells.append(tuple(cell.strip() for cell in line.split("|")[1:-1]))
    return cells


def first_cells(text, header):
    """First cell of every row of the table whose header line starts with `header`."""
    return [cells[0].strip("`") for cells in first_rows(text, header)]


def column_cells(text, header, column):
    """A column of the table whose header line starts with `header`."""
    return [cells[column] for cells in first_rows(text, header)]
