"""Break statements of the package one at a time, to see whether the tests notice.

`draw` picks statements of one tree by a seed. `break` breaks one of them in any tree: it searches
for the name of the function and the text of the statement, whatever file they are in now. `restore`
undoes the break.

    python tools/break_statements.py draw OLD > drawn.json
    python tools/break_statements.py break NEW --drawn drawn.json --index 3
    python tools/break_statements.py restore NEW
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

SEED = 20261118
COUNT = 30
PACKAGE = "src/monolith"
EXCLUDED = {"src/monolith/optim/_triton_step.py"}  # needs an accelerator
BACKUP = "build/broken"  # ignored by git
RENAMES = {  # old name -> name after the restructuring
    "TableVerbs": "BaseTable",
    "FeatureTables": "CoreEngine",
    "PlainFeatures": "PlainEngine",
    "AnchorQueue": "PendingGradients",
    "NameOrder": "SlotPacking",
    "Copier": "BatchCopier",
    "Work": "StepInput",
    "Taken": "SourceBatch",
}
OPERATORS = {ast.Add: ast.Sub, ast.Mult: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
SEQUENCES = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple)


class Statement(NamedTuple):
    """Locates a statement inside a function; `nth` counts equal texts of the function from 0."""

    file: str
    qualname: str
    text: str
    nth: int
    node: ast.Assign | ast.AugAssign | ast.Expr | ast.Return | ast.If

    @property
    def place(self) -> str:
        return f"{self.file}:{self.node.lineno}"

    def entry(self) -> dict[str, object]:
        """Return what `draw` prints for the statement."""
        return {
            "file": self.file,
            "line": self.node.lineno,
            "function": self.qualname,
            "nth": self.nth,
            "kind": type(self.node).__name__,
            "statement": self.text,
            "break": replacement(self.node),
        }


def is_drawable(node: ast.AST) -> bool:
    """Return whether `draw` may pick a node."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Return):
        return node.value is not None and ast.unparse(node.value) != "None"
    return isinstance(node, ast.Assign | ast.AugAssign | ast.If)


def statements(tree: Path) -> Iterator[Statement]:
    """Yield all drawable statements of a tree, in the order of files and lines."""
    for path in sorted(tree.joinpath(PACKAGE).rglob("*.py")):
        file = path.relative_to(tree).as_posix()
        if file not in EXCLUDED:
            yield from statements_below(ast.parse(path.read_bytes()), file, "", False, {})


def statements_below(
    node: ast.AST, file: str, name: str, in_function: bool, seen: dict[tuple[str, str], int]
) -> Iterator[Statement]:
    """Yield the drawable statements below a node; nested functions and classes extend the name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            qualname = f"{name}.{child.name}".lstrip(".")
            is_function = not isinstance(child, ast.ClassDef)
            yield from statements_below(child, file, qualname, is_function, seen)
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if in_function and is_drawable(child):
            text = f"if {ast.unparse(child.test)}" if isinstance(child, ast.If) else None
            text = text or ast.unparse(child)
            seen[name, text] = seen.get((name, text), -1) + 1
            yield Statement(file, name, text, seen[name, text], child)  # type: ignore[arg-type]
        yield from statements_below(child, file, name, in_function, seen)


def wrong(value: ast.expr) -> str:
    """Return an expression of a like type with another value, by the first rule that fits."""
    text = ast.unparse(value)
    match value:
        case ast.Constant(value=bool(x)):
            return str(not x)
        case ast.Constant(value=int(x) | float(x)):
            return repr(x + 1)
        case ast.Constant(value=str(x)):
            return repr(x + "x")
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return f"not ({text})"
        case ast.UnaryOp(operand=operand):
            return ast.unparse(operand)
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            return ast.unparse(ast.BoolOp(other, values))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.unparse(ast.IfExp(test, orelse, body))
        case ast.BinOp(left=left, op=op, right=right):
            joined = isinstance(left, SEQUENCES) or isinstance(right, SEQUENCES[1:])
            if type(op) in OPERATORS and not joined:
                return ast.unparse(ast.BinOp(left, OPERATORS[type(op)](), right))
            return ast.unparse(ast.BinOp(right, op, left))
        case ast.Tuple(elts=[first, second, *rest]):
            return ast.unparse(ast.Tuple([second, first, *rest], ast.Load()))
        case ast.List() | ast.ListComp() | ast.JoinedStr():
            return f"{text}[1:]" if text != "[]" else "[None]"
        case ast.Dict() | ast.DictComp():
            return "{}" if text != "{}" else "{None: None}"
        case ast.Call(func=ast.Attribute(value=ast.Call() as inner, attr=name), args=args):
            return f"{wrong(inner)}.{name}({', '.join(map(ast.unparse, args))})"
        case ast.Call(func=func, args=[first, second, *rest], keywords=keywords):
            return ast.unparse(ast.Call(func, [second, first, *rest], keywords))
        case ast.Call(args=[first]) if not isinstance(first, ast.Starred | ast.GeneratorExp):
            return ast.unparse(first)
        case ast.Subscript(value=base, slice=ast.Constant(value=int(x))):
            return f"{ast.unparse(base)}[{x + 1}]"
        case ast.Subscript(value=base):
            return ast.unparse(base)
    return "None"


def replacement(node: ast.stmt) -> str:
    """Return the text that replaces a statement, or the test of an `if`."""
    match node:
        case ast.If(test=test):
            return f"not ({ast.unparse(test)})"
        case ast.Return(value=ast.Constant(value=bool(x) | int(x))):
            return f"return {not x if isinstance(x, bool) else int(x == 0)}"
        case ast.Return():
            return "return None"
        case ast.Assign(targets=targets, value=value):
            left = " = ".join(ast.unparse(target) for target in targets)
            return f"{left} = {wrong(value)}"
    return "pass"


def break_source(source: bytes, node: ast.stmt) -> bytes:
    """Return the source with the statement replaced."""
    part = node.test if isinstance(node, ast.If) else node
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin = starts[part.lineno - 1] + part.col_offset
    end = starts[(part.end_lineno or part.lineno) - 1] + (part.end_col_offset or 0)
    text = source[:begin] + replacement(node).encode() + source[end:]
    ast.parse(text)
    return text


def rename(text: str) -> str:
    """Return the text with every name of `RENAMES` replaced."""
    return re.sub(r"\w+", lambda word: RENAMES.get(word[0], word[0]), text)


def find(tree: Path, entry: dict[str, object], at: str | None) -> Statement:
    """Return the statement of an entry in a tree: the match whose place is most alike.

    Exits with the candidates where no match or several equally good ones exist.
    """
    candidates = list(statements(tree))
    if at:
        return next(statement for statement in candidates if statement.place == at)
    name, text = rename(str(entry["function"])), rename(str(entry["statement"]))
    last = name.rpartition(".")[2]
    same_function = [s for s in candidates if s.qualname.rpartition(".")[2] == last]
    same_text = [s for s in same_function if rename(s.text) == text]

    def likeness(statement: Statement) -> tuple[bool, bool, bool]:
        is_nth = statement.nth == entry["nth"]
        return rename(statement.qualname) == name, statement.file == entry["file"], is_nth

    best = [s for s in same_text if likeness(s) == max(map(likeness, same_text))]
    if len(best) == 1:
        return best[0]
    same_function.sort(key=lambda s: -SequenceMatcher(None, s.text, text).ratio())
    shown = [f"  {s.place} {s.qualname}: {s.text}" for s in best or same_function[:8]]
    sys.exit("\n".join([f"{len(best)} places for {name}: {text}; choose --at", *shown]))


def break_one(tree: Path, entry: dict[str, object], at: str | None) -> None:
    """Break the statement of an entry; `BACKUP` holds the file as it was."""
    backup = tree / BACKUP
    if backup.exists():
        sys.exit(f"{backup} exists: restore first")
    statement = find(tree, entry, at)
    path = tree / statement.file
    source = path.read_bytes()
    text = break_source(source, statement.node)
    backup.mkdir(parents=True)
    backup.joinpath("source").write_bytes(source)
    backup.joinpath("file").write_text(statement.file)
    path.write_bytes(text)
    print(json.dumps(statement.entry()))


def restore(tree: Path) -> None:
    """Undo the break of a tree, if there is one."""
    backup = tree / BACKUP
    if backup.exists():
        path = tree / backup.joinpath("file").read_text()
        path.write_bytes(backup.joinpath("source").read_bytes())
        shutil.rmtree(backup)
        print(f"restored {path}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text in (
        ("draw", f"print {COUNT} statements and their breaks as JSON"),
        ("break", "break one statement and print its place"),
        ("restore", "undo the break"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("tree", type=Path, help="root of the working tree")
        if name == "break":
            command.add_argument("--drawn", type=Path, required=True, help="output of draw")
            command.add_argument("--index", type=int, required=True, help="entry of it, from 0")
            command.add_argument("--at", metavar="FILE:LINE", help="place, if no search finds it")
    options = parser.parse_args(arguments)
    if options.command == "draw":
        sample = random.Random(SEED).sample(list(statements(options.tree)), COUNT)
        print(json.dumps([statement.entry() for statement in sample], indent=1))
    elif options.command == "break":
        break_one(options.tree, json.loads(options.drawn.read_text())[options.index], options.at)
    else:
        restore(options.tree)


if __name__ == "__main__":
    main()
