"""Sources without end: folders that grow, and topics of Kafka."""

from monolith.data.stream.tail import tail

__all__ = [
    "tail",
]
