"""The source tree as the meta tests read it."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "monolith"

# Import paths of the reference system at the root (docs/parity.md): they re-export its wing.
WING_DOORS = ("base_model", "core", "model_registry", "path_utils", "tpu_runner", "utils")

# Modules that tools/protos.sh writes.
GENERATED = ("_pb2", "_pb2_grpc")


def python_files(directory):
    return sorted(path for path in directory.rglob("*.py") if "build" not in path.parts)


def module_name(path, src=SRC):
    """`monolith.ops.ragged` for src/monolith/ops/ragged.py; `monolith.ops` for its `__init__`."""
    parts = path.relative_to(src.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules(src=SRC):
    """(name, path, syntax tree) of every module below `src` but generated ones; only to be read."""
    return [
        (module_name(path, src), path, ast.parse(path.read_text(), str(path)))
        for path in python_files(src)
        if not path.stem.endswith(GENERATED)
    ]


def top_level(tree):
    """Yields the statements that run at import: also below `if`, `try` and `with`."""
    pending = list(tree.body)
    while pending:
        node = pending.pop(0)
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending.extend(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler | ast.For):
            pending.extend(child for child in ast.iter_child_nodes(node) if is_statement(child))


def is_statement(node):
    return isinstance(node, ast.stmt | ast.ExceptHandler)
