"""Sources without end: folders that grow, and topics of Kafka."""

from monolith.data.stream.kafka import kafka
from monolith.data.stream.tail import tail

__all__ = [
    "kafka",
    "tail",
]
