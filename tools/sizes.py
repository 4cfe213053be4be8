"""Prints the largest files and functions; `too_large` lists what is past the limits."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MAX_LINES = {".py": 600, ".h": 800, ".cpp": 800}
MAX_FUNCTION_LINES = 80
UNBOUNDED = ("src/monolith/native_training/",)  # the reference system's modules, as it cuts them
FOLDERS = ("benchmarks", "examples", "native", "src", "tests", "tools")


class Size(NamedTuple):
    """Lines of a file, or of the body of a function."""

    lines: int
    where: str


def source_files(root: Path = ROOT) -> list[Path]:
    """Every Python and C++ source of the project."""
    files = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    return sorted(path for path in files if path.suffix in MAX_LINES)


def functions(path: Path) -> Iterator[Size]:
    """Yields the body size of every function of a file."""
    read = python_functions if path.suffix == ".py" else cpp_functions
    for name, lines in read(path.read_text()):
        yield Size(lines, f"{path}:{name}")


def python_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yields (name, lines of the body without its docstring)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            yield node.name, lines


def cpp_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yields (name, lines between the braces) of outermost functions, found by their braces."""
    # Comments, literals and preprocessor lines may hold braces; their newlines are kept.
    noise = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^\s*#(?:\\\n|[^\n])*'
    text = re.sub(noise, newlines, source, flags=re.S | re.M)
    # So may initialisers: `x_{x}` (formatted code has a space before the brace of a body), `= {}`.
    text = re.sub(r"(?<=[\w>])\{[^{}]*\}|=\s*\{\s*\}", newlines, text)
    depth, start, inside = 0, 0, None  # inside: (name, depth, line) of the open function
    for match in re.finditer("[{};]", text):
        position, character = match.start(), match[0]
        if character == "{":
            name = function_name(text[start:position])
            if name and inside is None:
                inside = (name, depth, text.count("\n", 0, position))
            depth += 1
        elif character == "}":
            depth -= 1
            if inside and inside[1] == depth:
                yield inside[0], max(text.count("\n", 0, position) - inside[2] - 1, 0)
                inside = None
        start = position + 1


def newlines(match: re.Match[str]) -> str:
    """What is left of removed text, so that line numbers stay."""
    return "\n" * match[0].count("\n")


def function_name(header: str) -> str | None:
    """The name in `int f(int x) const`; None for a class, a namespace or an initialiser."""
    header = re.sub(r"\balignas\s*\((?:[^()]|\([^()]*\))*\)|\[\[.*?\]\]", "", header, flags=re.S)
    match = re.search(r"([\w~:]+|operator\S+)\s*\(", header)
    if match is None or re.search(r"\b(namespace|enum)\b", header[: match.start()]):
        return None
    return None if re.search(r"=\s*$", header) else match[1]


def too_large(root: Path = ROOT) -> list[str]:
    """One line for each file and function past its limit."""
    problems = []
    for path in source_files(root):
        lines = len(path.read_text().splitlines())
        is_bounded = not str(path.relative_to(root)).startswith(UNBOUNDED)
        if is_bounded and lines > MAX_LINES[path.suffix]:
            problems.append(f"{path}: {lines} lines, at most {MAX_LINES[path.suffix]}")
        for size in functions(path):
            if size.lines > MAX_FUNCTION_LINES:
                problems.append(f"{size.where}: {size.lines} lines, at most {MAX_FUNCTION_LINES}")
    return problems


def main() -> None:
    """Prints the ten largest files and functions."""
    paths = [path.relative_to(ROOT) for path in source_files()]
    files = [Size(len(path.read_text().splitlines()), str(path)) for path in paths]
    for title, sizes in (
        ("files", files),
        ("functions", [size for path in paths for size in functions(path)]),
    ):
        print(f"largest {title} (lines)")
        for size in sorted(sizes, reverse=True)[:10]:
            print(f"{size.lines:6}  {size.where}")


if __name__ == "__main__":
    main()
