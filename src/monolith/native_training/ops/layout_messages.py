"""Read and write feature configs as bytes: the message `FeatureConfigs`.

Fields stand in the order of their numbers, entries of maps in the order of their keys.
"""

from collections.abc import Sequence

from monolith.errors import DataLossError
from monolith.native_training.ops.layout_config import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    PoolingType,
    SliceConfig,
)
from monolith.util.protobuf import fields, put_bytes, put_varint, signed, varint, varints


def encode_feature_configs(configs: FeatureConfigs, *, batch_size: int = -1) -> bytes:
    """The bytes of a message.

    Args:
        configs: what to write; shapes of outputs are those that their slices make.
        batch_size: first dimension of the shapes; -1 where it is open.

    Example:
        >>> encode_feature_configs(FeatureConfigs({"a": FeatureConfig("t", (1, 2))})).hex()
        '0a0c0a016112070a01741a020102'
    """
    features = {name: _feature(config) for name, config in configs.feature_configs.items()}
    outputs = {
        name: _output(config, configs, configs.output_shapes[name], batch_size)
        for name, config in configs.out_configs.items()
    }
    return _map(1, features) + _map(2, outputs)


def _map(number: int, entries: dict[str, bytes]) -> bytes:
    return b"".join(
        put_bytes(number, put_bytes(1, key.encode()) + put_bytes(2, value))
        for key, value in sorted(entries.items())
    )


def _number(field: int, number: int) -> bytes:
    """Write nothing for 0, as proto3 does."""
    return put_varint(field, number) if number else b""


def _packed(field: int, numbers: Sequence[int]) -> bytes:
    return put_bytes(field, b"".join(varint(number) for number in numbers))


def _feature(config: FeatureConfig) -> bytes:
    return (
        put_bytes(1, config.table.encode())
        + _number(2, config.pooling_type)
        + _packed(3, config.slice_dims)
        + _number(4, config.max_sequence_length)
    )


def _output(
    config: OutConfig, configs: FeatureConfigs, shapes: Sequence[Sequence[int]], batch_size: int
) -> bytes:
    parts = []
    for piece in config.slice_configs:
        feature = configs.feature_configs[piece.feature_name]
        parts.append(
            put_bytes(
                1,
                put_bytes(1, piece.feature_name.encode())
                + _number(2, piece.start)
                + _number(3, piece.end)
                + _number(10, feature.pooling_type)
                + _number(11, feature.max_sequence_length),
            )
        )
    parts.append(_number(2, config.out_type))
    parts += [put_bytes(3, _packed(1, [batch_size, *shape[1:]])) for shape in shapes]
    return b"".join(parts)


def decode_feature_configs(message: bytes) -> FeatureConfigs:
    """The configs of a message; unknown fields are skipped.

    The first dimension of a shape is the batch, whatever number it has.

    Raises:
        DataLossError: the bytes are no message.
        ValueError: the configs do not fit each other.

    Example:
        >>> configs = FeatureConfigs({"a": FeatureConfig("t", (1, 2))})
        >>> decode_feature_configs(encode_feature_configs(configs)) == configs
        True
    """
    whole = _Message(message)
    entries = {number: map(_Message, whole.messages(number)) for number in (1, 2)}
    return FeatureConfigs(
        {entry.text(1): _read_feature(_Message(entry.bytes_of(2))) for entry in entries[1]},
        {entry.text(1): _read_output(_Message(entry.bytes_of(2))) for entry in entries[2]},
    )


class _Message:
    """All values of each field; one that is not there is empty, or 0."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        for number, value in fields(data):
            self._fields.setdefault(number, []).append(value)

    def messages(self, number: int) -> list[bytes]:
        return [_as_bytes(number, value) for value in self._fields.get(number, [])]

    def bytes_of(self, number: int) -> bytes:
        return (self.messages(number) or [b""])[-1]

    def text(self, number: int) -> str:
        try:
            return self.bytes_of(number).decode()
        except UnicodeDecodeError as error:
            raise DataLossError(
                f"[FeatureConfigs] expected field {number} of UTF-8, got {error}"
            ) from error

    def number(self, number: int) -> int:
        value = self._fields.get(number, [0])[-1]
        if isinstance(value, bytes):
            raise DataLossError(f"[FeatureConfigs] expected field {number} of a number, got bytes")
        return signed(value)

    def numbers(self, number: int) -> list[int]:
        """Integers, packed or not."""
        values = self._fields.get(number, [])
        parts = [[value] if isinstance(value, int) else varints(value) for value in values]
        return [signed(value) for part in parts for value in part]


def _as_bytes(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise DataLossError(f"[FeatureConfigs] expected field {number} of bytes, got a number")
    return value


def _read_feature(message: _Message) -> FeatureConfig:
    pooling = PoolingType(message.number(2))
    return FeatureConfig(message.text(1), message.numbers(3), pooling, message.number(4))


def _read_output(message: _Message) -> OutConfig:
    pieces = [
        SliceConfig(piece.text(1), piece.number(2), piece.number(3))
        for piece in map(_Message, message.messages(1))
    ]
    shapes = [_Message(shape).numbers(1) for shape in message.messages(3)]
    open_shapes = [[-1, *shape[1:]] for shape in shapes]
    return OutConfig(pieces, OutType(message.number(2)), open_shapes)
