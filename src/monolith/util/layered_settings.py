"""Settings from layers: default < file < environment < flag, each with its origin."""

import contextlib
import dataclasses
import difflib
import enum
import json
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

_TRUE, _FALSE = ("true", "1"), ("false", "0")


def is_known(hint: Any) -> bool:
    """Whether values of a type can be read.

    Example:
        >>> is_known(int | None), is_known(list[tuple[int, str]]), is_known(complex)
        (True, False, False)
    """
    members = _members(hint)
    if members:
        return all(map(is_known, members))
    if get_origin(hint) in (list, tuple):
        return all(each is ... or _is_plain(each) for each in get_args(hint))
    return _is_plain(hint)


def _is_plain(hint: Any) -> bool:
    is_enum = isinstance(hint, type) and issubclass(hint, enum.Enum)
    return hint in (bool, int, float, str) or get_origin(hint) is Literal or is_enum


def name_of(hint: Any) -> str:
    """A type in words, for messages.

    Example:
        >>> name_of(list[int]), name_of(Literal["a", "b"]), name_of(bool | None)
        ('a list of int', "one of 'a', 'b'", 'true or false, or none')
    """
    members = _members(hint)
    if members:
        return ", or ".join([name_of(each) for each in members] + ["none"] * _takes_none(hint))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if get_origin(hint) in (list, tuple):
        kinds = [name_of(each) for each in get_args(hint) if each is not ...]
        return f"a list of {', '.join(kinds)}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"one of {', '.join(repr(member.name) for member in hint)}"
    return "true or false" if hint is bool else str(hint.__name__)


def converted(hint: Any, value: Any, *, is_text: bool) -> Any:
    """A value as the type wants it.

    Args:
        hint: for which `is_known` is true.
        value: text, or what a file holds.
        is_text: the value is text of a flag or variable. Lists are separated by commas there, and
            numbers are text; in a file they are lists and numbers.

    Raises:
        ValueError: it is no such value.

    Example:
        >>> converted(list[int], "1,2_000", is_text=True), converted(int | None, 5, is_text=False)
        ([1, 2000], 5)
    """
    members = _members(hint)
    if members:
        is_none = value is None or (isinstance(value, str) and value.lower() == "none")
        return None if is_none and _takes_none(hint) else _first_of(members, value, is_text)
    if get_origin(hint) in (list, tuple):
        return _list(hint, value, is_text)
    if get_origin(hint) is Literal:
        return _choice([(choice, choice) for choice in get_args(hint)], value, is_text)
    if issubclass(hint, enum.Enum):
        pairs = [(key, member) for member in hint for key in (member.name, member.value)]
        return _choice(pairs, value, is_text)
    return _plain(hint, value, is_text)


def _members(hint: Any) -> list[Any]:
    """`int` and `str` of `int | str | None`; none of other types."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    return [each for each in get_args(hint) if each is not type(None)] if is_union else []


def _takes_none(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _first_of(members: list[Any], value: Any, is_text: bool) -> Any:
    """As the first of several types that takes the value."""
    for member in members[:-1]:
        with contextlib.suppress(ValueError):
            return converted(member, value, is_text=is_text)
    return converted(members[-1], value, is_text=is_text)


def _list(hint: Any, value: Any, is_text: bool) -> Any:
    if is_text:
        value = [part.strip() for part in value.split(",")] if value.strip() else []
    kinds = get_args(hint)
    if not isinstance(value, list):
        raise ValueError("not a list")
    if get_origin(hint) is list or kinds[-1] is ...:
        kinds = (kinds[0],) * len(value)
    items = [
        converted(kind, item, is_text=is_text) for kind, item in zip(kinds, value, strict=True)
    ]
    return items if get_origin(hint) is list else tuple(items)


def _choice(pairs: list[tuple[Any, Any]], value: Any, is_text: bool) -> Any:
    for key, choice in pairs:
        if (is_text and str(key) == value) or (type(key) is type(value) and key == value):
            return choice
    raise ValueError("not a choice")


def _plain(hint: Any, value: Any, is_text: bool) -> Any:
    if hint is str and isinstance(value, str):
        return value
    if is_text and hint is bool:
        return _choice([(word, word in _TRUE) for word in _TRUE + _FALSE], value.lower(), is_text)
    if is_text:
        return hint(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float and is_number:
        return float(value)
    if type(value) is hint:
        return value
    raise ValueError("another type")


SETTING_PREFIX = "MONOLITH_SET_"
"""What the names of environment variables that hold settings begin with."""

T = TypeVar("T")


class Setting(NamedTuple):
    """A value and where it came from: "default", "file x.toml", "environment NAME" or "--set"."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """Settings in their final form.

    Args:
        value: the schema's object.
        settings: each dotted key with its value and origin, in the order of the schema.
    """

    value: T
    settings: dict[str, Setting]

    def lines(self) -> list[str]:
        """A line for each key, to be printed when a command starts."""
        return [f"{key} = {value!r}  ({origin})" for key, (value, origin) in self.settings.items()]


class _Given(NamedTuple):
    """A key that somebody set; text of a flag or variable is not yet of the key's type."""

    key: str
    value: Any
    origin: str
    is_text: bool


class _Leaf(NamedTuple):
    """A field that is no section; where it `has_names`, any name below its key is a value."""

    hint: Any
    has_names: bool
    default: Any


def resolve(
    schema: type[T],
    *,
    file: "str | os.PathLike[str] | None" = None,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Resolved[T]:
    """Settings from all places; a flag wins over a variable, that over the file.

    Types: int, float, bool, str, Literal, Enum, lists and tuples of these, each or None;
    `dict[str, X]` takes any name below its key. In text, lists are separated by commas, numbers may
    have underscores, and "none" is None.

    Args:
        schema: a dataclass; fields may be dataclasses.
        file: a .toml file (Python 3.11 or later) or a .json file.
        environment: variables; of those that begin with `MONOLITH_SET_`, the rest of the name is a
            key in capitals, `__` for a dot.
        flags: "key=value" each.

    Raises:
        ValueError: an unknown key, a value of another type, or a required key without a value; the
            message says where it came from.
        FileNotFoundError: there is no such file.

    Example:
        >>> @dataclass
        ... class Train:
        ...     steps: int = 1000
        ...     rates: tuple[float, ...] = (0.1,)
        >>> resolved = resolve(Train, flags=["steps=2_000"])
        >>> resolved.value
        Train(steps=2000, rates=(0.1,))
        >>> resolved.lines()
        ['steps = 2000  (--set)', 'rates = (0.1,)  (default)']
    """
    leaves = dict(_leaves(schema, "", dataclasses.MISSING))
    given = [
        *(() if file is None else _of_file(os.fspath(file), leaves)),
        *_of_environment(environment or {}),
        *map(_of_flag, flags),
    ]
    found = {key: _defaults(key, leaf) for key, leaf in leaves.items()}
    for each in given:
        key = _leaf_key(each, leaves)
        found[key][each.key] = Setting(_value(each, leaves[key].hint), each.origin)
    _check_complete(found, leaves)
    settings = {key: setting for part in found.values() for key, setting in part.items()}
    return Resolved(_built(schema, "", found, leaves), settings)


def _leaves(schema: Any, prefix: str, default: Any) -> Iterator[tuple[str, _Leaf]]:
    """Every field that is no section, by its dotted key; `default` is an object of the schema."""
    hints = get_type_hints(schema)
    for field in _fields(schema):
        hint, key = hints[field.name], prefix + field.name
        is_free = default is dataclasses.MISSING
        value = _default_of(field) if is_free else getattr(default, field.name)
        if dataclasses.is_dataclass(hint):
            yield from _leaves(hint, key + ".", value)
            continue
        has_names = get_origin(hint) is dict and get_args(hint)[0] is str
        leaf = _Leaf(get_args(hint)[1] if has_names else hint, has_names, value)
        if not is_known(leaf.hint):
            raise TypeError(
                f"[settings] expected {key!r} as int, float, bool, str, Literal, Enum, or lists or "
                f"a dict of these, got {hint}"
            )
        yield key, leaf


def _fields(schema: Any) -> "list[dataclasses.Field[Any]]":
    return [field for field in dataclasses.fields(schema) if field.init]


def _default_of(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _defaults(key: str, leaf: _Leaf) -> dict[str, Setting]:
    if leaf.default is dataclasses.MISSING:
        return {}
    values = (
        {f"{key}.{name}": value for name, value in leaf.default.items()}
        if leaf.has_names
        else {key: leaf.default}
    )
    return {each: Setting(value, "default") for each, value in values.items()}


def _of_flag(text: str) -> _Given:
    key, mark, value = text.partition("=")
    if not mark:
        raise ValueError(f"[settings] expected key=value, got {text!r} (--set)")
    return _Given(key.strip(), value, "--set", is_text=True)


def _of_environment(environment: Mapping[str, str]) -> list[_Given]:
    names = sorted(name for name in environment if name.startswith(SETTING_PREFIX))
    return [
        _Given(
            name.removeprefix(SETTING_PREFIX).lower().replace("__", "."),
            environment[name],
            f"environment {name}",
            is_text=True,
        )
        for name in names
    ]


def _variable(key: str) -> str:
    return SETTING_PREFIX + key.upper().replace(".", "__")


def _of_file(path: str, leaves: Mapping[str, _Leaf]) -> Iterator[_Given]:
    def walk(content: Mapping[str, Any], prefix: str) -> Iterator[_Given]:
        for name, value in content.items():
            key = prefix + name
            below = [leaf for leaf in leaves if leaf.startswith(f"{key}.")]
            if isinstance(value, dict) and (below or (key in leaves and leaves[key].has_names)):
                yield from walk(value, f"{key}.")
            else:
                yield _Given(key, value, f"file {path}", is_text=False)

    yield from walk(_read(path), "")


def _read(path: str) -> Mapping[str, Any]:
    end = os.path.splitext(path)[1]
    if end not in (".json", ".toml"):
        raise ValueError(f"[settings] expected a .toml or .json file, got {path!r}")
    if end == ".toml" and sys.version_info < (3, 11):
        raise ValueError(
            f"[settings] expected Python 3.11 or later for .toml files, got {path!r} on "
            f"{sys.version.split()[0]}; write the settings as .json"
        )
    try:
        with open(path, encoding="utf-8") as file:
            content = _parsed(file.read(), end)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"[settings] expected a file, got none at {path!r}") from error
    except ValueError as error:  # of either format, and of bytes that are no text
        raise ValueError(f"[settings] expected {end[1:].upper()}, got: {error} ({path})") from error
    if not isinstance(content, dict):
        raise ValueError(f"[settings] expected keys and values, got {content!r} ({path})")
    return content


def _parsed(text: str, end: str) -> Any:
    if end == ".json":
        return json.loads(text)
    return import_module("tomllib").loads(text)


def _leaf_key(given: _Given, leaves: Mapping[str, _Leaf]) -> str:
    """The key of the field that a key belongs to."""
    for key, leaf in leaves.items():
        if given.key.startswith(f"{key}.") if leaf.has_names else given.key == key:
            return key
    shown = [f"{key}.NAME" if leaf.has_names else key for key, leaf in leaves.items()]
    below = [key for key in shown if key.startswith(f"{given.key}.")]
    if below:
        raise ValueError(
            f"[settings] expected a key below {given.key!r}, such as {below[0]!r}, "
            f"got {given.key!r} ({given.origin})"
        )
    near = difflib.get_close_matches(given.key, shown, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(shown)}"
    raise ValueError(f"[settings] expected a known key, got {given.key!r} ({given.origin}); {hint}")


def _value(given: _Given, hint: Any) -> Any:
    try:
        return converted(hint, given.value, is_text=given.is_text)
    except ValueError as error:
        raise ValueError(
            f"[settings] expected {given.key!r} as {name_of(hint)}, got {given.value!r} "
            f"({given.origin})"
        ) from error


def _check_complete(
    found: Mapping[str, Mapping[str, Setting]], leaves: Mapping[str, _Leaf]
) -> None:
    missing = [
        key
        for key, leaf in leaves.items()
        if leaf.default is dataclasses.MISSING and not found[key]
    ]
    if missing:
        first = f"{missing[0]}.NAME" if leaves[missing[0]].has_names else missing[0]
        raise ValueError(
            f"[settings] expected a value of {', '.join(map(repr, missing))}, got none; "
            f"give --set {first}=..., {_variable(first)} or a file"
        )


def _built(
    schema: Any,
    prefix: str,
    found: Mapping[str, Mapping[str, Setting]],
    leaves: Mapping[str, _Leaf],
) -> Any:
    values: dict[str, Any] = {}
    for field in _fields(schema):
        key = prefix + field.name
        if key not in leaves:
            section = get_type_hints(schema)[field.name]
            values[field.name] = _built(section, f"{key}.", found, leaves)
        elif leaves[key].has_names:
            below = found[key].items()
            values[field.name] = {each.removeprefix(f"{key}."): s.value for each, s in below}
        else:
            values[field.name] = found[key][key].value
    return schema(**values)
