"""Public names: those that a package lists in its sorted `__all__`."""

import ast


def is_public(name):
    return not name.startswith("_")


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


def undocumented(owner, name):
    """Yields a class, a function and their public methods that have no docstring of their own."""
    if isinstance(owner, type):
        if not owner.__doc__:
            yield name
        for attribute, value in vars(owner).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            if is_public(attribute) and callable(function) and not has_docstring(owner, attribute):
                yield f"{name}.{attribute}"
    elif callable(owner) and not owner.__doc__:
        yield name


def has_docstring(owner, attribute):
    """Whether the class or one that it derives from says what the attribute does."""
    values = [vars(base)[attribute] for base in owner.__mro__ if attribute in vars(base)]
    return any(getattr(value, "__doc__", None) for value in values)
