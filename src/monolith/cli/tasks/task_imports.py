"""Check the imports of a task file of the reference system before the file runs."""

import ast
import difflib
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from monolith.errors import InvalidArgumentError

PAGE = "docs/reference/migrate.md"
"""Page with the table of imports."""

_REFERENCE_PATHS = ("native_training", "core", "base_model", "model_registry", "utils")
_CAUGHT = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})

MOVED = MappingProxyType(
    {
        "monolith.core.base_layer": "from torch import nn",
        "monolith.core.base_task": "from monolith.native_training.native_task import NativeTask",
        "monolith.core.dense": "from torch import nn",
        "monolith.core.model_registry": "from monolith import model_registry",
        "monolith.native_training.data.datasets": "from monolith import data",
        "monolith.native_training.data.feature_utils": "from monolith.data import operations",
        "monolith.native_training.data.parsers": "from monolith.data import RecordParser",
        "monolith.native_training.layers": "from torch import nn",
        "monolith.native_training.monolith_export": None,
        "monolith.native_training.native_model": "from monolith import base_model",
        "monolith.native_training.native_model.MonolithModel": (
            "from monolith.base_model import MonolithModel"
        ),
        "idl": "from monolith.data import RecordParser",
    }
)
"""Module or name that is not there -> the import in its place; None for a line to be removed."""


class TaskImportError(InvalidArgumentError):
    """Raised if a task file imports something that is not there; the text says what to import."""


class _Import(NamedTuple):
    module: str
    names: tuple[str, ...]
    level: int  # number of leading dots
    line: int
    text: str


def check_imports(file: Path, root: Path | None = None) -> None:
    """Check the imports of a task file, and of the files that the file imports from its folder.

    Args:
        file: Task file.
        root: Folder whose modules are checked too; the folder of the file if None.

    Raises:
        TaskImportError: a file of the reference system imports TensorFlow; or an import of this
            package, or of one of the reference system's, is not there.
    """
    imports = list(_all_imports(file, root or file.parent))
    is_of_reference = any(_is_of_reference(part) for _, part in imports)
    for path, part in imports:
        better = _better(part, is_of_reference)
        if better is not None:
            raise TaskImportError(
                f"[task file] expected an import that is there, got {part.text!r} in {path}, "
                f"line {part.line}; {better}; see {PAGE}"
            )


def _all_imports(file: Path, root: Path) -> Iterator[tuple[Path, _Import]]:
    """Yield the imports of a file, and of the files that it imports, each with its file."""
    pending, known = [file], {file.resolve()}
    while pending:
        path = pending.pop()
        for part in _imports(path):
            yield path, part
            for neighbour in _files_of(part, path, root):
                if neighbour.resolve() not in known:
                    known.add(neighbour.resolve())
                    pending.append(neighbour)


def _files_of(part: _Import, path: Path, root: Path) -> Iterator[Path]:
    """Yield the files of an import that lie below a folder, or beside the importing file."""
    folder = path.parents[part.level - 1] if 0 < part.level <= len(path.parents) else root
    modules = [part.module, *(f"{part.module}.{name}".strip(".") for name in part.names)]
    for module in modules:
        base = folder.joinpath(*module.split("."))
        # `from . import x` has no module: only the folder's own __init__.py
        file = [base.with_name(f"{base.name}.py")] if module else []
        candidates = (*file, base / "__init__.py")
        yield from (candidate for candidate in candidates if candidate.is_file())


def _imports(path: Path) -> list[_Import]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError):
        return []  # the run of the file tells what is wrong, with its line
    return list(_imports_below(tree))


def _imports_below(node: ast.AST) -> Iterator[_Import]:
    """Yield the imports of a tree but those that may fail, or that only a type checker does."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            text = ast.unparse(child)
            for alias in child.names:
                yield _Import(alias.name, (), 0, child.lineno, text)
        elif isinstance(child, ast.ImportFrom):
            names = tuple(alias.name for alias in child.names)
            text = ast.unparse(child)
            yield _Import(child.module or "", names, child.level, child.lineno, text)
        elif not (isinstance(child, ast.Try) and _catches_imports(child)) and not (
            isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        ):
            yield from _imports_below(child)


def _catches_imports(node: ast.Try) -> bool:
    kinds = [
        ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers
    ]
    return any(kind in _CAUGHT for text in kinds for kind in text.strip("()").split(", "))


def _is_of_reference(part: _Import) -> bool:
    top, _, rest = ("", "", "") if part.level else part.module.partition(".")
    names = [rest.split(".")[0]] if rest else list(part.names)
    return top == "idl" or (top == "monolith" and any(n in _REFERENCE_PATHS for n in names))


def _better(part: _Import, is_of_reference: bool) -> str | None:
    """Return what to do about an import that is not there, else None."""
    top = "" if part.level else part.module.split(".")[0]
    if top == "tensorflow":
        if not is_of_reference:  # a task that reads its data with TensorFlow
            return None
        is_keras = "keras" in part.module.split(".") or "keras" in part.names
        return f"change it to {'from torch import nn' if is_keras else 'import torch'!r}"
    if top == "idl":
        return None if _is_there(top) else _change_to(top)
    if top != "monolith":
        return None
    if not _is_there(part.module):
        return _change_to(f"{part.module}.{part.names[0]}" if part.names else part.module)
    missing = [name for name in part.names if name != "*" and not _has(part.module, name)]
    if not missing or not is_of_reference:  # the run tells what a task of ours lacks
        return None
    whole = f"{part.module}.{missing[0]}"
    if _entry(whole) is not None:
        return _change_to(whole)
    near = difflib.get_close_matches(missing[0], dir(importlib.import_module(part.module)), 1)
    return f"{part.module} has {near[0]!r}" if near else f"{part.module} has no {missing[0]!r}"


def _change_to(module: str) -> str:
    entry = _entry(module)
    if entry is None:
        return f"there is no {module!r} here, leave out what uses it"
    return "remove the line" if MOVED[entry] is None else f"change it to {MOVED[entry]!r}"


def _entry(module: str) -> str | None:
    """Return the longest path of the table that a module is, or lies below."""
    parts = module.split(".")
    paths = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((path for path in paths if path in MOVED), None)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def _has(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or _is_there(f"{module}.{name}")
