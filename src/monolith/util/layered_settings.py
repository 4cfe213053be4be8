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
    """Whether `convert_value` can read values of a type.

    Example:
        >>> is_known(int | None), is_known(list[tuple[int, str]]), is_known(complex)
        (True, False, False)
    """
    members = _members(hint)
    if members:
        return all(map(is_known, members))
    if get_origin(hint) in (list, tuple):
        return all(part is ... or _is_plain(part) for part in get_args(hint))
    return _is_plain(hint)


def _is_plain(hint: Any) -> bool:
    is_enum = isinstance(hint, type) and issubclass(hint, enum.Enum)
    return hint in (bool, int, float, str) or get_origin(hint) is Literal or is_enum


def name_of(hint: Any) -> str:
    """Return the name of a type in words, for messages.

    Example:
        >>> name_of(list[int]), name_of(Literal["a", "b"]), name_of(bool | None)
        ('a list of int', "one of 'a', 'b'", 'true or false, or none')
    """
    members = _members(hint)
    if members:
        return ", or ".join([name_of(part) for part in members] + ["none"] * _takes_none(hint))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if get_origin(hint) in (list, tuple):
        kinds = [name_of(part) for part in get_args(hint) if part is not ...]
        return f"a list of {', '.join(kinds)}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"one of {', '.join(repr(member.name) for member in hint)}"
    return "true or false" if hint is bool else str(hint.__name__)


def convert_value(hint: Any, value: Any, *, is_text: bool) -> Any:
    """Return a value convert_value to a type.

    Args:
        hint: type for which `is_known` is true.
        value: text, or a value of a settings file.
        is_text: whether the value is the text of a flag or variable. Lists in such a text are
            separated by commas, and numbers are digits; a file has lists and numbers.

    Raises:
        ValueError: the value does not fit the type.

    Example:
        >>> convert_value(list[int], "1,2_000", is_text=True)
        [1, 2000]
        >>> convert_value(int | None, 5, is_text=False)
        5
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
    """Return `int` and `str` of `int | str | None`; an empty list without alternatives."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    return [member for member in get_args(hint) if member is not type(None)] if is_union else []


def _takes_none(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _first_of(members: list[Any], value: Any, is_text: bool) -> Any:
    """Return the value convert_value to the first type that accepts the value."""
    for member in members[:-1]:
        with contextlib.suppress(ValueError):
            return convert_value(member, value, is_text=is_text)
    return convert_value(members[-1], value, is_text=is_text)


def _list(hint: Any, value: Any, is_text: bool) -> Any:
    if is_text:
        value = [part.strip() for part in value.split(",")] if value.strip() else []
    kinds = get_args(hint)
    if not isinstance(value, list):
        raise ValueError("not a list")
    if get_origin(hint) is list or kinds[-1] is ...:
        kinds = (kinds[0],) * len(value)
    items = [
        convert_value(kind, item, is_text=is_text) for kind, item in zip(kinds, value, strict=True)
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
"""Prefix of the environment variables that hold settings."""

T = TypeVar("T")


class Setting(NamedTuple):
    """A value and its origin: "default", "file x.toml", "environment NAME" or "--set"."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """All settings after the layers are merged.

    Args:
        value: object of the schema.
        settings: value and origin of each dotted key, in the order of the schema.
    """

    value: T
    settings: dict[str, Setting]

    def lines(self) -> list[str]:
        """Return a line for each key, to be printed when a command starts."""
        return [f"{key} = {value!r}  ({origin})" for key, (value, origin) in self.settings.items()]


class _RawValue(NamedTuple):
    """A key with its raw value; the text of a flag or variable is not convert_value yet."""

    key: str
    value: Any
    origin: str
    is_text: bool


class _Leaf(NamedTuple):
    """A field with a value. If it `has_names`, any name below its key has a value of its own."""

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
    """Merge the settings of all layers: a flag overrides a variable, which overrides the file.

    Types: int, float, bool, str, Literal, Enum, lists and tuples of these, and any of
    them or None; `dict[str, X]` accepts any name below its key. In text, lists are separated by
    commas, numbers may have underscores, and "none" is None.

    Args:
        schema: a dataclass; fields may be dataclasses.
        file: a .toml file (Python 3.11 or later) or a .json file.
        environment: variables by name. A setting is named `MONOLITH_SET_` and its key in capitals,
            with `__` instead of a dot; other variables are ignored.
        flags: texts of the form "key=value".

    Raises:
        ValueError: a key is unknown, a value has another type, or a required key has no value; the
            message names the origin.
        FileNotFoundError: the file does not exist.

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
    raw_values = [
        *(() if file is None else _file_values(os.fspath(file), leaves)),
        *_environment_values(environment or {}),
        *map(_flag_value, flags),
    ]
    settings = {key: _defaults(key, leaf) for key, leaf in leaves.items()}
    for raw in raw_values:
        key = _leaf_key(raw, leaves)
        settings[key][raw.key] = Setting(_value(raw, leaves[key].hint), raw.origin)
    _check_complete(settings, leaves)
    all_settings = {key: value for part in settings.values() for key, value in part.items()}
    return Resolved(_object(schema, "", settings, leaves), all_settings)


def _leaves(schema: Any, prefix: str, default: Any) -> Iterator[tuple[str, _Leaf]]:
    """Yield the fields that have values, by dotted key; `default` is an object of the schema."""
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
    return {name: Setting(value, "default") for name, value in values.items()}


def _flag_value(text: str) -> _RawValue:
    key, mark, value = text.partition("=")
    if not mark:
        raise ValueError(f"[settings] expected key=value, got {text!r} (--set)")
    return _RawValue(key.strip(), value, "--set", is_text=True)


def _environment_values(environment: Mapping[str, str]) -> list[_RawValue]:
    names = sorted(name for name in environment if name.startswith(SETTING_PREFIX))
    return [
        _RawValue(
            name.removeprefix(SETTING_PREFIX).lower().replace("__", "."),
            environment[name],
            f"environment {name}",
            is_text=True,
        )
        for name in names
    ]


def _variable(key: str) -> str:
    return SETTING_PREFIX + key.upper().replace(".", "__")


def _file_values(path: str, leaves: Mapping[str, _Leaf]) -> Iterator[_RawValue]:
    def walk(content: Mapping[str, Any], prefix: str) -> Iterator[_RawValue]:
        for name, value in content.items():
            key = prefix + name
            below = [leaf for leaf in leaves if leaf.startswith(f"{key}.")]
            if isinstance(value, dict) and (below or (key in leaves and leaves[key].has_names)):
                yield from walk(value, f"{key}.")
            else:
                yield _RawValue(key, value, f"file {path}", is_text=False)

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
            content = _parse(file.read(), end)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"[settings] expected a file, got none at {path!r}") from error
    except ValueError as error:  # of JSON, TOML or undecodable bytes
        raise ValueError(f"[settings] expected {end[1:].upper()}, got: {error} ({path})") from error
    if not isinstance(content, dict):
        raise ValueError(f"[settings] expected keys and values, got {content!r} ({path})")
    return content


def _parse(text: str, end: str) -> Any:
    if end == ".json":
        return json.loads(text)
    return import_module("tomllib").loads(text)


def file_keys(path: str) -> set[str]:
    """Return the dotted keys that a settings file has, those of sections included, unchecked.

    Raises:
        ValueError: the file is neither TOML nor JSON.
        FileNotFoundError: the file does not exist.
    """

    def walk(content: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for name, value in content.items():
            yield prefix + name
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{name}.")

    return set(walk(_read(path), ""))


def _leaf_key(raw: _RawValue, leaves: Mapping[str, _Leaf]) -> str:
    """Return the key of the field that a raw key belongs to."""
    for key, leaf in leaves.items():
        if raw.key.startswith(f"{key}.") if leaf.has_names else raw.key == key:
            return key
    shown = [f"{key}.NAME" if leaf.has_names else key for key, leaf in leaves.items()]
    below = [key for key in shown if key.startswith(f"{raw.key}.")]
    if below:
        raise ValueError(
            f"[settings] expected a key below {raw.key!r}, such as {below[0]!r}, "
            f"got {raw.key!r} ({raw.origin})"
        )
    near = difflib.get_close_matches(raw.key, shown, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(shown)}"
    raise ValueError(f"[settings] expected a known key, got {raw.key!r} ({raw.origin}); {hint}")


def _value(raw: _RawValue, hint: Any) -> Any:
    try:
        return convert_value(hint, raw.value, is_text=raw.is_text)
    except ValueError as error:
        raise ValueError(
            f"[settings] expected {raw.key!r} as {name_of(hint)}, got {raw.value!r} ({raw.origin})"
        ) from error


def _check_complete(
    settings: Mapping[str, Mapping[str, Setting]], leaves: Mapping[str, _Leaf]
) -> None:
    missing = [
        key
        for key, leaf in leaves.items()
        if leaf.default is dataclasses.MISSING and not settings[key]
    ]
    if missing:
        first = f"{missing[0]}.NAME" if leaves[missing[0]].has_names else missing[0]
        raise ValueError(
            f"[settings] expected a value of {', '.join(map(repr, missing))}, got none; "
            f"give --set {first}=..., {_variable(first)} or a file"
        )


def _object(
    schema: Any,
    prefix: str,
    settings: Mapping[str, Mapping[str, Setting]],
    leaves: Mapping[str, _Leaf],
) -> Any:
    values: dict[str, Any] = {}
    for field in _fields(schema):
        key = prefix + field.name
        if key not in leaves:
            section = get_type_hints(schema)[field.name]
            values[field.name] = _object(section, f"{key}.", settings, leaves)
        elif leaves[key].has_names:
            below = settings[key].items()
            values[field.name] = {name.removeprefix(f"{key}."): s.value for name, s in below}
        else:
            values[field.name] = settings[key][key].value
    return schema(**values)
