"""Write and parse flat protobuf messages as text, `name: value` lines, without protobuf."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from monolith.errors import DataLossError


class Field(NamedTuple):
    """A field of a message.

    Args:
        kind: `str`, `int` or `float`; or the names of an enum, by number.
        is_repeated: whether it holds a list.
    """

    kind: "type[str | int | float] | tuple[str, ...]"
    is_repeated: bool = False


_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<word>[-+]?[A-Za-z0-9_.][A-Za-z0-9_.+-]*)
  | (?P<mark>[:{}<>\[\],;])
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_NAMED = MappingProxyType(
    {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
)
_CLOSING = MappingProxyType({"{": "}", "<": ">"})
_BAD = (ValueError, KeyError, IndexError, OverflowError, RecursionError)


def format_message(schema: Mapping[str, Field], values: Mapping[str, Any]) -> str:
    r"""Write a line per value, in the order of the schema; None and empty lists have no line.

    Example:
        >>> format_message({"path": Field(str, True), "at": Field(float)}, {"path": ["a"], "at": 2})
        'path: "a"\nat: 2.0\n'
    """
    lines = []
    for name, field in schema.items():
        value = values.get(name)
        for item in value if field.is_repeated and value is not None else [value]:
            if item is not None:
                lines.append(f"{name}: {_text(field, item)}\n")
    return "".join(lines)


def _text(field: Field, value: Any) -> str:
    if field.kind is str:
        return f'"{"".join(map(_escaped, str(value).encode()))}"'
    if isinstance(field.kind, tuple):
        return str(field.kind[value])
    return repr(float(value)) if field.kind is float else str(int(value))


def _escaped(byte: int) -> str:
    named = {0x0A: r"\n", 0x0D: r"\r", 0x09: r"\t", 0x22: r"\"", 0x5C: r"\\"}
    if byte in named:
        return named[byte]
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def parse_message(schema: Mapping[str, Field], text: str) -> dict[str, Any]:
    """Return the values of a message. Unknown fields are skipped; the last value of a field counts.

    Raises:
        DataLossError: the text is not such a message.

    Example:
        >>> parse_message({"step": Field(int)}, "step: 7 other { a: 1 } more: 'x'")
        {'step': 7}
    """
    try:
        return _Parser(schema, list(_tokens(text))).message()
    except _BAD as error:
        raise DataLossError(f"[parse_message] expected a text message, got {error}") from error


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"{text[at : at + 20]!r} at character {at}")
        at = token.end()
        if token.lastgroup != "space":
            yield str(token.lastgroup), token.group()
    yield "end", "the end"


class _Parser:
    def __init__(self, schema: Mapping[str, Field], tokens: list[tuple[str, str]]) -> None:
        self._schema, self._tokens, self._at = schema, tokens, 0

    def message(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while self._tokens[self._at][0] != "end":
            self._field(values)
        return values

    def _take(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _skip(self, marks: str) -> bool:
        kind, text = self._tokens[self._at]
        is_found = kind == "mark" and text in marks
        self._at += is_found
        return is_found

    def _field(self, values: dict[str, Any] | None) -> None:
        """Parse one field into the values, or drop the field if `values` is None."""
        kind, name = self._take()
        if kind != "word":
            raise ValueError(f"{name!r} in place of a field's name")
        has_colon = self._skip(":")
        kind, text = self._tokens[self._at]
        if kind == "mark" and text in _CLOSING:
            if values is not None and name in self._schema:
                raise ValueError(f"a message as the value of {name!r}")
            self._message(text)
        elif not has_colon:
            raise ValueError(f"{text!r} in place of ':' after {name!r}")
        elif self._skip("["):
            while not self._skip("]"):
                self._value(values, name)
                self._skip(",")
        else:
            self._value(values, name)
        self._skip(",;")

    def _message(self, opening: str) -> None:
        self._take()
        while not self._skip(_CLOSING[opening]):
            self._field(None)

    def _value(self, values: dict[str, Any] | None, name: str) -> None:
        kind, text = self._take()
        if kind not in ("string", "word"):
            raise ValueError(f"{text!r} as the value of {name!r}")
        parts = [text]
        while kind == "string" and self._tokens[self._at][0] == "string":
            parts.append(self._take()[1])
        field = self._schema.get(name)
        if field is None or values is None:
            return
        if (field.kind is str) != (kind == "string"):
            raise ValueError(f"{text!r} as the value of {name!r}")
        value = _value_of(field, parts)
        if field.is_repeated:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value


def _value_of(field: Field, parts: list[str]) -> Any:
    if field.kind is str:
        return b"".join(_unescaped(part[1:-1].encode()) for part in parts).decode()
    if isinstance(field.kind, tuple):
        names = field.kind
        return int(parts[0]) if parts[0].isdigit() else names.index(parts[0])
    return float(parts[0]) if field.kind is float else int(parts[0])


def _unescaped(data: bytes) -> bytes:
    def one(match: "re.Match[bytes]") -> bytes:
        hexadecimal, octal, other = match.groups()
        if other is not None:
            return _NAMED.get(other, other)
        return bytes([int(hexadecimal, 16) if hexadecimal else int(octal, 8)])

    return _ESCAPE.sub(one, data)
