"""Write YAML that people read and compare: block style, quotes only where a reader needs them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

# A text that YAML 1.1 and 1.2 read as itself. Everything else is quoted.
_PLAIN = re.compile(r"-{0,2}[A-Za-z/](?:[A-Za-z0-9_./:@-]*[A-Za-z0-9_/])?|[0-9]+[GM]i")
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_SIMPLE = re.compile(r"[\n -~]+")  # ASCII without tabs and carriage returns
_ESCAPES = MappingProxyType({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"})


def yaml_text(documents: Sequence[Mapping[str, Any]]) -> str:
    r"""Return documents of mappings, lists, texts, integers and booleans as YAML.

    The result is the same for equal documents, in the order of their keys, so that two prints can
    be compared line by line.

    Raises:
        TypeError: A value is of another type.

    Example:
        >>> print(yaml_text([{"kind": "Job", "names": ["a b", "c"], "text": "x = 1\n"}]), end="")
        kind: Job
        names:
          - "a b"
          - c
        text: |
          x = 1
    """
    return "---\n".join("".join(f"{line}\n" for line in _lines(each)) for each in documents)


def _lines(value: Any) -> Iterator[str]:
    """Yield the lines of a mapping or a list that is not empty."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item)
        return
    for item in value:
        if _is_nested(item):
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in rest)
        else:
            yield from _entry("-", item)


def _entry(start: str, value: Any) -> Iterator[str]:
    if _is_nested(value):
        yield start
        yield from (f"  {line}" if line else "" for line in _lines(value))
    elif isinstance(value, str) and _is_block(value):
        yield f"{start} |"
        yield from (f"  {line}" if line else "" for line in value[:-1].split("\n"))
    else:
        yield f"{start} {_scalar(value)}"


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _is_block(text: str) -> bool:
    """Whether a block gives a text back as it is: lines, the last one with its end."""
    is_simple = _SIMPLE.fullmatch(text) is not None
    return is_simple and text.endswith("\n") and not text.endswith("\n\n") and text[0] not in " \n"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT
        return value if is_plain else _quoted(value)
    if value in ({}, [], ()):
        return "{}" if isinstance(value, Mapping) else "[]"
    raise TypeError(f"[yaml_text] expected a text, an integer or a boolean, got {value!r}")


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    code = ord(character)
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"
