"""Which module imports which layer, and whether it may."""

import ast

from tests.meta.tree import SRC, WING_DOORS, modules

# Top to bottom; a layer imports only layers on a later line.
LAYERS = (
    ("cli",),
    ("launch",),
    ("serve", "train"),
    ("cluster",),
    ("checkpoint", "control"),
    ("nn", "optim", "data"),
    ("features",),
    ("table",),
    ("ops",),
    ("_native",),
)
# Every layer may import these; a leaf imports only leaves after itself.
LEAVES = ("observe", "util", "environment", "errors")
# The loader of the core imports nothing of ours; `util` has the frames that the core checks.
LOADER, LOADER_USERS = "monolith.ops.compiled", ("util",)
WING = "native_training"  # the reference system: imports everything, only its doors import it

RANK = {layer: rank for rank, line in enumerate(LAYERS) for layer in line}

# The table in Python defines the meaning. Only tests use it, and what stands in for the core.
REFERENCE = "monolith.table.reference"
REFERENCE_USERS = ("monolith.table", "monolith.table.codecs")


def wrong_imports(src=SRC):
    """One line for each import that does not go downwards, or that imports the wing."""
    return [
        f"{name} imports {target}"
        for name, path, tree in modules(src)
        for target in imported(tree, name, is_package=path.name == "__init__.py")
        if not (may_import(layer_of(name), layer_of(target)) or may_load_core(name, target))
        or not may_use_reference(name, target)
    ]


def imported(tree, name, *, is_package):
    """Yields the full names of our own modules that a module imports, at import or later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                kept = package[: len(package) - node.level + 1]
                base = ".".join([*kept, *filter(None, [node.module])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (target for target in targets if target.split(".")[0] == "monolith")


def layer_of(name):
    """`ops` for monolith.ops.ragged; empty for the package itself, `cli` for `python -m`."""
    layer = [*name.split("."), ""][1]
    return "cli" if layer == "__main__" else layer


def may_import(layer, target):
    if target in WING_DOORS:
        return layer == target
    if target == WING:
        return layer in (WING, *WING_DOORS)
    known = target in RANK or target in LEAVES
    if not known or layer == target or layer in ("", WING, *WING_DOORS):
        return known or target.startswith("__") or target == ""
    if layer in LEAVES:
        return target in LEAVES[LEAVES.index(layer) :]
    return target in LEAVES or RANK[layer] < RANK[target]


def may_load_core(name, target):
    return layer_of(name) in LOADER_USERS and f"{target}.".startswith(f"{LOADER}.")


def may_use_reference(name, target):
    is_inside = f"{name}.".startswith(f"{REFERENCE}.")
    return is_inside or not f"{target}.".startswith(f"{REFERENCE}.") or name in REFERENCE_USERS
