"""Import confluent-kafka, which the extra `kafka` installs, on first use."""

from typing import Any

from monolith.errors import FailedPreconditionError


def load_kafka() -> Any:
    """Return the module `confluent_kafka`.

    Raises:
        FailedPreconditionError: confluent-kafka is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise FailedPreconditionError(
            "[data.stream.kafka] expected confluent-kafka for topics of Kafka, got none; install "
            "it with: pip install 'monolith-torch[kafka]'"
        ) from error
    return confluent_kafka
