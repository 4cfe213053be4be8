"""Table in Python that defines the meaning of every verb."""

from monolith.table.reference.table import ReferenceTable

__all__ = [
    "ReferenceTable",
]
