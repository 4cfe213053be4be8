"""Labels and weights of blocks as numpy arrays."""

import pyarrow as pa

from monolith.data.operations.sample_rows import Floats, floats_of, set_column


def label_of(where: str, block: pa.RecordBatch, name: str, index: int) -> Floats:
    """Return one of the labels of each sample.

    Raises:
        ValueError: there are too few labels.
    """
    labels = floats_of(where, block, name)
    if not 0 <= index < labels.shape[1]:
        raise ValueError(
            f"{where} expected a label index from 0 to {labels.shape[1] - 1}, got {index} "
            f"(column {name!r})"
        )
    column: Floats = labels[:, index]
    return column


def times_weight(block: pa.RecordBatch, name: str, factors: Floats) -> pa.RecordBatch:
    """Return the block with weights multiplied by factors; a missing column counts as ones."""
    if name in block.schema.names:
        factors = floats_of("[weight]", block, name)[:, 0] * factors
    return set_column(block, name, factors)


def set_labels(block: pa.RecordBatch, name: str, labels: Floats) -> pa.RecordBatch:
    """Return the block with labels (n, width) instead of labels of the same width."""
    is_wide = pa.types.is_fixed_size_list(block.column(name).type)
    return set_column(block, name, labels if is_wide else labels[:, 0])


def at_least(where: str, block: pa.RecordBatch, label: str, count: int, what: str) -> Floats:
    """Return the labels of a block, (n, width), with a width of at least `count`.

    Raises:
        ValueError: there are fewer labels.
    """
    labels = floats_of(where, block, label)
    if labels.shape[1] < count:
        raise ValueError(
            f"{where} expected at least {count} labels, one for each {what}, got "
            f"{labels.shape[1]} (column {label!r})"
        )
    return labels
