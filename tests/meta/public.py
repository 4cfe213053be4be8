"""Public names: listed in a sorted `__all__`, and documented."""

import ast

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def undocumented(tree, name):
    """Yields the module, class, function or method that has no docstring."""
    if not ast.get_docstring(tree):
        yield name
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from undocumented(node, f"{name}.{node.name}")
        elif isinstance(node, FUNCTIONS) and needs_docstring(node) and not ast.get_docstring(node):
            yield f"{name}.{node.name}"


def needs_docstring(function):
    """An override or a property setter is documented where the name is introduced."""
    decorators = {ast.unparse(decorator).split(".")[-1] for decorator in function.decorator_list}
    return is_public(function.name) and not decorators & {"override", "overload", "setter"}


def is_public(name):
    return not name.startswith("_")


def listing_problems(tree):
    """Yields what is wrong with `__all__`: missing, not sorted, or without a public name."""
    nodes = (*FUNCTIONS, ast.ClassDef)
    defined = {n.name for n in tree.body if isinstance(n, nodes) and is_public(n.name)}
    listed = listed_names(tree)
    if listed is None:
        if defined:
            yield "no __all__"
        return
    if listed != sorted(listed):
        yield "__all__ is not sorted"
    yield from (f"{name} is not in __all__" for name in sorted(defined - set(listed)))


def listed_names(tree):
    """The value of `__all__`; None where the module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def taken_names(tree, package):
    """Public names that a package imports from its own modules."""
    taken = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"{package}."):
            taken.update(alias.asname or alias.name for alias in node.names)
    return {name for name in taken if is_public(name)}
