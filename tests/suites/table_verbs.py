"""Verbs by name, for tests that say one fact about many of them."""

import torch


def _values(table, keys):
    return torch.zeros(len(keys), table.dim)


WRITERS = {
    "lookup_or_insert": lambda table, keys, **options: table.lookup_or_insert(keys, **options),
    "assign": lambda table, keys, **options: table.assign(keys, _values(table, keys), **options),
    "assign_add": lambda table, keys, **options: table.assign_add(
        keys, _values(table, keys), **options
    ),
    "apply_gradients": lambda table, keys, **options: table.apply_gradients(
        keys, _values(table, keys), **options
    ),
    "reinitialize": lambda table, keys, **options: table.reinitialize(keys, **options),
}
"""(table, keys, now=) of every verb that takes a time."""

MATRIX_VERBS = {"assign": "values", "assign_add": "values", "apply_gradients": "grads"}
"""Verb -> name of its matrix."""

THREADED_VERBS = ("lookup", "lookup_or_insert", *MATRIX_VERBS)

KEY_VERBS = ("lookup", "contains", "lookup_entry", *WRITERS, "erase")


def call(table, verb, keys, values=None, **options):
    """Call a verb by name; values are zeros of the right shape unless given."""
    if verb not in MATRIX_VERBS:
        return getattr(table, verb)(keys, **options)
    if values is None:
        values = torch.zeros(len(keys) if hasattr(keys, "__len__") else 1, table.dim)
    return getattr(table, verb)(keys, values, **options)
