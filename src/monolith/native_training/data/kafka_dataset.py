"""`KafkaDataset` of the reference system, on `data.stream.kafka`."""

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

from monolith.data import Columns, Framing, Pipeline, RecordFormat
from monolith.data.stream import kafka
from monolith.errors import InvalidArgumentError

_FRAMING = ("lagrangex_header", "kafka_dump_prefix", "has_sort_id", "kafka_dump")
_KINDS = ("example", "instance", "example_batch")
_RESETS = MappingProxyType(
    {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest"}
)


def KafkaDataset(  # noqa: N802  (a name of the reference system)
    topics: str | Sequence[str],
    group_id: str,
    servers: str | Sequence[str],
    *,
    columns: Columns,
    has_header: bool = True,
    variant_type: str | None = None,
    output_pb_type: str | None = None,
    stream_timeout: int = -1,
    message_poll_timeout: int = 10_000,
    poll_batch_size: int | None = None,
    filter_empty: bool = False,
    configuration: Sequence[str] | None = None,
    container: str = "",
    shared_name: str = "",
    kafka_other_metadata: str | None = None,
    **kwargs: Any,
) -> Pipeline:
    """Return the samples of topics as a pipeline, whose offsets are a part of checkpoints.

    Samples travel as columns, one row each, whatever type the reference system would convert them
    to. Without `auto.offset.reset` in the configuration, a partition without a position begins at
    its end, as in the reference system.

    Args:
        topics: name of a topic, or several names.
        group_id: group among whose members the broker divides the partitions.
        servers: addresses of brokers.
        columns: columns to read; the reference system names them where it parses.
        has_header: whether a message has framed records; otherwise it is one bare record.
        variant_type: "example", "instance" or "example_batch"; None means "instance".
        output_pb_type: changes nothing, because samples travel as columns.
        stream_timeout: milliseconds without a message after which the data ends; -1 never ends it.
        message_poll_timeout: least value of a `stream_timeout` that is not -1.
        poll_batch_size: changes nothing; batches are formed by `Pipeline.batch`.
        filter_empty: refused unless False.
        configuration: settings of librdkafka as `key=value`.
        container: changes nothing.
        shared_name: changes nothing.
        kafka_other_metadata: further settings as `key=value`, with commas between them.
        kwargs: `has_sort_id`, `kafka_dump`, `kafka_dump_prefix` and `lagrangex_header` of the
            framing; `on_error` and other options of `data.stream.kafka`.

    Raises:
        ValueError: the timeout is negative and not -1, or a setting has no value.
        InvalidArgumentError: an argument is refused.
    """
    if stream_timeout < -1:
        raise ValueError(
            f"Invalid stream_timeout value: {stream_timeout} ,set it to -1 to block indefinitely."
        )
    kind = variant_type or "instance"
    if kind == "examplebatch":  # as names of the reference system have it, too
        kind = "example_batch"
    if kind not in _KINDS:
        raise InvalidArgumentError(
            f"[KafkaDataset] expected variant_type in {', '.join(_KINDS)}, got {variant_type!r}"
        )
    if filter_empty:
        raise InvalidArgumentError(
            "[KafkaDataset] expected filter_empty=False, got True; filter samples by their columns "
            "with Pipeline.filter"
        )
    framing = {name: kwargs.pop(name) for name in _FRAMING if name in kwargs}
    if framing and not has_header:
        raise InvalidArgumentError(
            f"[KafkaDataset] expected has_header=True with {', '.join(framing)}, got False"
        )
    settings = dict(_settings([*(configuration or []), *_parts(kafka_other_metadata)]))
    reset = settings.pop("auto.offset.reset", "latest")
    idle = max(stream_timeout, message_poll_timeout) / 1e3 if stream_timeout >= 0 else None
    return kafka(
        servers if isinstance(servers, str) else ",".join(servers),
        topics,
        RecordFormat(kind, Framing(**framing)) if has_header else kind,
        columns=columns,
        group=group_id,
        start=_RESETS.get(reset, reset),
        settings=settings,
        idle_seconds=idle,
        **kwargs,
    )


def _parts(text: str | None) -> list[str]:
    return [part for part in (text or "").split(",") if part.strip()]


def _settings(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield the names and values of settings; a setting of topics loses its prefix."""
    for line in lines:
        name, separator, value = line.strip().partition("=")
        if not separator:
            raise ValueError(f"[KafkaDataset] expected a setting as key=value, got {name!r}")
        yield name.removeprefix("conf.topic."), value
