"""Read `feature_list.conf`: the features of a model by name and by slot.

    # a comment
    column_name: user, item
    feed_name=area; shared=true; feature_id=368235
    cache_name=users; capacity=1000; timeout=60; cache_type=lru
    feature_name=fc_user_id slot=1 depend=user_id method=Combine shared=true

A line holds pairs of key and value, which spaces and `;` separate; the values of a list have commas
between them.
"""

import dataclasses
import itertools
import logging
import os
import re
import threading
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.native_training.data.utils import get_slot_feature_name, get_slot_from_feature_name

_log = logging.getLogger(__name__)

_TRUE = frozenset({"true", "yes", "t", "y", "1"})
_PREFIXES = ("", "f_", "fc_")
_PREFIX = re.compile(r"^fc?_")

# Path of a file -> the time and size of the file when it was read, by kind of name, and its list.
_LISTS: dict[tuple[str, bool], tuple[tuple[int, int], "FeatureList"]] = {}
_LISTS_LOCK = threading.Lock()

_LineT = TypeVar("_LineT", "Feed", "Cache", "Feature")


@dataclass(frozen=True)
class Feed:
    """Hold a column that requests carry.

    Attributes:
        feed_name: Name of the column.
        shared: Whether all samples of a request have the same value.
        feature_id: Number of the column.
        extra: Keys of the line that are none of these, as text.
    """

    feed_name: str
    shared: bool = False
    feature_id: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the column."""
        return self.feed_name


@dataclass(frozen=True)
class Cache:
    """Hold the options of a cache of features.

    Attributes:
        cache_name: Name of the cache.
        cache_key_class: Class of its keys.
        cache_column: Column of its keys.
        capacity: Number of entries.
        timeout: Age of an entry that is dropped.
        cache_type: Kind of the cache.
        extra: Keys of the line that are none of these, as text.
    """

    cache_name: str = ""
    cache_key_class: str = ""
    cache_column: str = ""
    capacity: int = 0
    timeout: int = 0
    cache_type: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the first of name, key class and column that the line has."""
        return self.cache_name or self.cache_key_class or self.cache_column


@dataclass(frozen=True)
class Feature:
    """Describe a feature of the model, and how the feature is computed.

    Attributes:
        feature_name: Name of the feature.
        depend: Columns that the feature is computed from.
        method: How the feature is computed.
        slot: Number of its slot.
        args: Arguments of the method.
        feature_version: Version of the feature.
        shared: Whether all samples of a request have the same value.
        cache_keys: Keys of its cache.
        need_raw: Whether the raw values stay.
        feature_id: Number of the feature.
        input_optional: Whether each of `depend` may be missing.
        feature_group: Groups of the feature.
        extra: Keys of the line that are none of these, as text.
    """

    feature_name: str
    depend: tuple[str, ...] = ()
    method: str = ""
    slot: int | None = None
    args: tuple[str, ...] = ()
    feature_version: int | None = None
    shared: bool = False
    cache_keys: tuple[str, ...] = ()
    need_raw: bool = False
    feature_id: int | None = None
    input_optional: tuple[bool, ...] = ()
    feature_group: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name in lower case, without the prefixes of its parts.

        Example:
            >>> Feature("fc_User_Id-f_item").name
            'user_id-item'
        """
        return _plain(self.feature_name)

    @property
    def depend_strip_prefix(self) -> tuple[str, ...]:
        """Return `depend` in lower case, without prefixes."""
        return tuple(map(_plain, self.depend))

    def __str__(self) -> str:
        """Return the line of the feature; values that are not set are left out."""
        shown = {name: _text(value) for name, value in vars(self).items() if name != "extra"}
        pairs = {name: text for name, text in shown.items() if text} | dict(self.extra)
        return " ".join(f"{name}={text}" for name, text in pairs.items())


class FeatureList:
    """Find the features of a file by name and by slot.

    Args:
        column_name: Columns of the file.
        feeds: Feeds by name.
        caches: Caches by name.
        features: Features by name.

    Example:
        >>> features = FeatureList([], {}, {}, {"fc_user": Feature("fc_user", slot=3)})
        >>> features["user"].slot, features[3].feature_name, "item" in features
        (3, 'fc_user', False)
    """

    def __init__(
        self,
        column_name: Sequence[str],
        feeds: Mapping[str, Feed],
        caches: Mapping[str, Cache],
        features: Mapping[str, Feature],
    ) -> None:
        self.column_name, self.feeds, self.caches = list(column_name), dict(feeds), dict(caches)
        self.features = dict(features)
        self._by_slot: dict[int, list[Feature]] = {}
        for feature in self.features.values():
            if feature.slot is not None:
                self._by_slot.setdefault(feature.slot, []).append(feature)

    @classmethod
    def parse(
        cls, fname: "str | os.PathLike[str] | None" = None, use_old_name: bool = True
    ) -> "FeatureList":
        """Return the features of a file; a file that did not change is read once.

        Args:
            fname: Path of the file.
            use_old_name: Whether features are found by the name in the file; False takes their
                plain name, `Feature.name`.

        Raises:
            ValueError: There is no path.
            NotFoundError: There is no such file.
            InvalidArgumentError: The file or a line cannot be read.
        """
        if fname is None:
            raise ValueError(
                "[FeatureList.parse] expected the path of a file, got None; there is no flag of "
                "the process, pass the path"
            )
        path = Path(fname).resolve()
        try:
            status = path.stat()
        except FileNotFoundError as error:
            raise NotFoundError(
                f"[FeatureList.parse] expected a file, got none at {str(path)!r}"
            ) from error
        key, version = (str(path), use_old_name), (status.st_mtime_ns, status.st_size)
        with _LISTS_LOCK:
            if key not in _LISTS or _LISTS[key][0] != version:
                _LISTS[key] = version, cls._read(path, use_old_name=use_old_name)
            return _LISTS[key][1]

    @classmethod
    def _read(cls, path: Path, *, use_old_name: bool) -> "FeatureList":
        columns: list[str] = []
        feeds: dict[str, Feed] = {}
        caches: dict[str, Cache] = {}
        features: dict[str, Feature] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (UnicodeDecodeError, OSError) as error:
            raise InvalidArgumentError(
                f"[FeatureList.parse] expected a file of UTF-8 text, got {path}: {error}"
            ) from error
        for number, line in enumerate(lines, 1):
            line = line.strip()
            where = f"({path}, line {number})"
            if not line or line.startswith("#"):
                continue
            head, colon, rest = line.partition(":")
            if colon and head.strip() == "column_name":
                columns += _listed(rest)
            elif colon and head.strip() == "cache_column":
                for column in _listed(rest):
                    caches[column] = Cache(cache_column=column)
            elif line.startswith("feed"):
                feed = _line_of(Feed, line, where)
                feeds[feed.name] = feed
            elif line.startswith("cache"):
                cache = _line_of(Cache, line, where)
                if not cache.name:
                    raise InvalidArgumentError(
                        "[FeatureList.parse] expected cache_name, cache_key_class or "
                        f"cache_column, got {line!r} {where}"
                    )
                caches[cache.name] = cache
            else:
                feature = _line_of(Feature, line, where)
                name = feature.feature_name if use_old_name else feature.name
                if name in features:
                    _log.warning("feature %r is there twice: this line counts %s", name, where)
                features[name] = feature
        return cls(columns, feeds, caches, features)

    def __getitem__(self, item: str | int) -> Feature:
        """Return the first feature of a slot, or the feature of a name.

        A name is tried as it is, with the prefixes `f_` and `fc_`, and with prefixes of each part
        of a name that `-` joins.

        Raises:
            KeyError: There is none.
        """
        if isinstance(item, int):
            features = self.get_with_slot(item)
            if features:
                return features[0]
        else:
            parts = itertools.product(_PREFIXES, repeat=item.count("-") + 1)
            uniform = (prefix + item for prefix in _PREFIXES)
            mixed = (
                "-".join(map("".join, zip(prefixes, item.split("-"), strict=True)))
                for prefixes in parts
            )
            for name in itertools.chain(uniform, mixed):
                if name in self.features:
                    return self.features[name]
        raise KeyError(f"[FeatureList] expected a feature or its slot, got {item!r}")

    def get(self, item: str | int, default: Feature | None = None) -> Feature | None:
        """Return the feature of a name or a slot, else the default."""
        try:
            return self[item]
        except KeyError:
            return default

    def get_with_slot(self, slot: int) -> list[Feature]:
        """Return the features of a slot in the order of the file."""
        return list(self._by_slot.get(slot, ()))

    def __contains__(self, item: object) -> bool:
        try:
            return isinstance(item, str | int) and self[item] is not None
        except KeyError:
            return False

    def __len__(self) -> int:
        return len(self.features)

    def __iter__(self) -> Iterator[Feature]:
        return iter(self.features.values())


def get_feature_name_and_slot(
    item: Any, feature_list: FeatureList | None = None
) -> tuple[str, int | None]:
    """Return the name of a feature and the number of its slot, None without a number.

    Args:
        item: Name, number of a slot, or column of a feature.
        feature_list: List that is asked first.

    Example:
        >>> get_feature_name_and_slot(7), get_feature_name_and_slot("slot_7")
        (('fc_slot_7', 7), ('slot_7', 7))
    """
    if isinstance(item, int):
        feature = feature_list.get(item) if feature_list is not None else None
        return (get_slot_feature_name(item) if feature is None else feature.feature_name), item
    name = item if isinstance(item, str) else str(item.feature_name)
    feature = feature_list.get(name) if feature_list is not None else None
    if feature is not None and feature.slot is not None:
        return name, feature.slot
    return name, get_slot_from_feature_name(name)


def _line_of(kind: type[_LineT], line: str, where: str) -> _LineT:
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    extra: dict[str, str] = {}
    for key, text in _pairs(line, where).items():
        if key in hints and key != "extra":
            values[key] = _value(hints[key], key, text, where)
        else:
            extra[key] = text
    required = dataclasses.fields(kind)[0].name
    if kind is not Cache and not values.get(required):
        raise InvalidArgumentError(
            f"[FeatureList.parse] expected {required}=NAME, got {line!r} {where}"
        )
    return kind(**values, extra=extra)


def _pairs(line: str, where: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    line = re.sub(r"\s*([=,])\s*", r"\1", line)  # "args=1, 2" is one value, "a = b" one pair
    for pair in re.split(r"[;\s]+|,(?=\w+=)", line.strip(" ;,")):
        key, equals, text = pair.partition("=")
        if not equals or not key or key in pairs:
            expected = f"{key} once" if key in pairs else "key=value"
            raise InvalidArgumentError(
                f"[FeatureList.parse] expected {expected}, got {pair!r} {where}"
            )
        pairs[key] = text.rstrip(",")
    return pairs


def _value(hint: Any, key: str, text: str, where: str) -> Any:
    if hint is bool:
        return text.lower() in _TRUE
    if hint == tuple[str, ...]:
        return tuple(_listed(text))
    if hint == tuple[bool, ...]:
        return tuple(part.lower() in _TRUE for part in _listed(text))
    if hint is str:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"[FeatureList.parse] expected {key} as a whole number, got {text!r} {where}"
        ) from error


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.strip(" ;,").split(",") if part.strip()]


def _plain(name: str) -> str:
    return "-".join(_PREFIX.sub("", part.lower()) for part in name.split("-"))


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_text(part) or "false" for part in value)
    if isinstance(value, bool):
        return "true" if value else ""
    return "" if value is None else str(value)
