"""Feature configs as bytes: the message `FeatureConfigs` of the reference system.

Fields stand in the order of their numbers, entries of maps in the order of their keys.
"""

from collections.abc import Sequence
from typing import Any

from monolith.ops.layout_config import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    PoolingType,
    SliceConfig,
)
from monolith.util.protobuf import fields, put_bytes, put_varint, signed, varint

__all__ = ["decode_feature_configs", "encode_feature_configs"]


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
    """Nothing for 0, as in proto3."""
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
    features: dict[str, FeatureConfig] = {}
    outputs: dict[str, OutConfig] = {}
    for number, value in fields(message):
        if number == 1:
            key, body = _entry(value)
            features[key] = _read_feature(body)
        elif number == 2:
            key, body = _entry(value)
            outputs[key] = _read_output(body)
    return FeatureConfigs(features, outputs)


def _collected(message: Any) -> dict[int, list[Any]]:
    """All values of each field."""
    found: dict[int, list[Any]] = {}
    for number, value in fields(bytes(message)):
        found.setdefault(number, []).append(value)
    return found


def _entry(message: Any) -> tuple[str, bytes]:
    found = _collected(message)
    return found.get(1, [b""])[-1].decode(), found.get(2, [b""])[-1]


def _numbers(values: list[Any]) -> list[int]:
    """Integers of a field, packed or not."""
    data = b"".join(varint(value) if isinstance(value, int) else value for value in values)
    found, start = [], 0
    for end, byte in enumerate(data, 1):
        if byte < 0x80:  # the last byte of a number
            groups = [each & 0x7F for each in data[start:end]]
            found.append(signed(sum(each << (7 * i) for i, each in enumerate(groups))))
            start = end
    return found


def _read_feature(message: bytes) -> FeatureConfig:
    found = _collected(message)
    return FeatureConfig(
        found.get(1, [b""])[-1].decode(),
        _numbers(found.get(3, [])),
        PoolingType(found.get(2, [0])[-1]),
        found.get(4, [0])[-1],
    )


def _read_output(message: bytes) -> OutConfig:
    found = _collected(message)
    pieces = []
    for piece in map(_collected, found.get(1, [])):
        name = piece.get(1, [b""])[-1].decode()
        pieces.append(SliceConfig(name, piece.get(2, [0])[-1], piece.get(3, [0])[-1]))
    shapes = [_numbers(_collected(shape).get(1, [])) for shape in found.get(3, [])]
    open_shapes = [[-1, *shape[1:]] for shape in shapes]
    return OutConfig(pieces, OutType(found.get(2, [0])[-1]), open_shapes)
