"""Settings of a command: default < file < environment < flag, each with where it came from.

A schema is a dataclass, with dataclasses inside for sections:

    @dataclass
    class Train:                         train.steps=100            --set
        steps: int = 1000                MONOLITH_SET_TRAIN__STEPS  environment
                                         [train]                    file.toml
    @dataclass                           steps = 100
    class Settings:
        train: Train
        data: dict[str, str]             data.clicks=logs/          any name below `data`
"""

import dataclasses
import difflib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from monolith.util.setting_types import converted, is_known, name_of

__all__ = ["Resolved", "SETTING_PREFIX", "Setting", "resolve"]

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
