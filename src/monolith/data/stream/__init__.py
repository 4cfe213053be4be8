"""Sources without end: folders that grow, and topics of Kafka; and what is done with events."""

from monolith.data.stream.kafka import kafka
from monolith.data.stream.tail import tail

__all__ = [
    "kafka",
    "tail",
]
