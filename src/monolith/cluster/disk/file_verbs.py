"""The verbs by which a shard writes and reads files, and their arguments."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from monolith.cluster.host_verbs import Argument, Checked, Flag, Integer, Read, Verb, Write
from monolith.table._checks import MAX_THREADS, MAX_TIME
from monolith.table.config import NUM_PARTITIONS
from monolith.table.routing import FloorModRouting, PartitionRouting

_MOST = (1 << 63) - 1
_MAX_PATH = 1 << 12  # characters
_MAX_DOCUMENT = 1 << 24  # characters
_MAX_FILES = 1 << 16
_ROUTINGS = (PartitionRouting.__name__, FloorModRouting.__name__)


class Text(Argument):
    """A str of at most `most` characters, which is Unicode.

    Args:
        name: in messages.
        most: largest number of characters.
        pattern: expression that the whole text matches.
    """

    def __init__(self, name: str, most: int, pattern: str = r"[^\0]+") -> None:
        super().__init__(name)
        self._most, self._pattern = most, re.compile(pattern)

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not str or len(value) > self._most or not self._pattern.fullmatch(value):
            text = f"{self.name} as at most {self._most} characters of {self._pattern.pattern!r}"
            raise call.error(text, value)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise call.error(f"{self.name} as Unicode", value) from error


class Config(Text):
    """The config of the whole table as JSON text."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _MAX_DOCUMENT)

    def _check(self, call: Checked, value: Any) -> None:
        super()._check(call, value)
        try:
            content = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise call.error(f"{self.name} as JSON", value) from error
        seed = content.get("seed") if type(content) is dict else None
        if type(seed) is not int or content.get("name") != call.facts.name:
            raise call.error(f"{self.name} as a JSON object with the table's name and seed", value)


class Rate(Argument):
    """A number above 0, or None."""

    def _check(self, call: Checked, value: Any) -> None:
        if value is not None and not (type(value) is float and 0 < value < math.inf):
            raise call.error(f"{self.name} as a float above 0 or None", value)


class Runs(Argument):
    """A tuple or list of runs of partitions, (first, last), ascending and apart."""

    def _check(self, call: Checked, value: Any) -> None:
        end = -1
        for run in _sequence(call, self.name, value):
            if type(run) not in (tuple, list) or [type(number) for number in run] != [int, int]:
                raise call.error(f"{self.name} as pairs of ints", run)
            if not end < run[0] <= run[1] < NUM_PARTITIONS:
                raise call.error(f"{self.name} that ascend in [0, {NUM_PARTITIONS})", run)
            end = run[1]


class Files(Argument):
    """A list of at most 2**16 tuples, each with values for some arguments.

    Args:
        name: in messages.
        columns: arguments of each tuple.
    """

    def __init__(self, name: str, *columns: Argument) -> None:
        super().__init__(name)
        self._columns = columns

    def _check(self, call: Checked, value: Any) -> None:
        for row in _sequence(call, self.name, value):
            if type(row) not in (tuple, list) or len(row) != len(self._columns):
                raise call.error(f"{self.name} with {len(self._columns)} values each", row)
            for column, item in zip(self._columns, row, strict=True):
                column._check(call, item)


class Fields(Argument):
    """A dict with a value for each of some arguments, by name.

    Args:
        name: in messages.
        fields: the arguments.
    """

    def __init__(self, name: str, *fields: Argument) -> None:
        super().__init__(name)
        self._fields = {field.name: field for field in fields}

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not dict or set(value) != set(self._fields):
            names = ", ".join(sorted(self._fields))
            raise call.error(f"{self.name} as a dict with {names}", value)
        for name, field in self._fields.items():
            field._check(call, value[name])


class Shard(Argument):
    """None, or the placement of the host's shard: (kind, num_shards, shard)."""

    def _check(self, call: Checked, value: Any) -> None:
        if value is None:
            return
        is_placement = type(value) is tuple and [type(item) for item in value] == [str, int, int]
        if not is_placement or value[0] not in _ROUTINGS:
            raise call.error(f"{self.name} as None or (one of {_ROUTINGS}, int, int)", value)
        if not 0 <= value[2] < value[1] <= NUM_PARTITIONS:
            raise call.error(f"{self.name} with a number below {NUM_PARTITIONS}", value[1:])


def _sequence(call: Checked, name: str, value: Any) -> "Sequence[Any]":
    if type(value) not in (tuple, list) or len(value) > _MAX_FILES:
        raise call.error(f"{name} as a list of at most {_MAX_FILES}", value)
    return value  # type: ignore[no-any-return]


_JOB = Integer("number", 0, _MOST)
_FOLDER = Text("folder", _MAX_PATH, r"(/|\w+:)[^\0]*")
# Relative to the folder; never leads out of it.
_FILE = Text("file", _MAX_PATH, r"(?!.*\.\.(/|$))[^/\0][^\0]*\.arrow(\.tmp-[0-9a-f]{12})?")
_KIND = Text("kind", 10, "rows|candidates|tombstones")
_CONFIG = Config("config")
_THREADS = Integer("num_threads", 1, MAX_THREADS)

_SAVE = Fields(
    "request",
    _FOLDER,
    Files("files", _FILE, _KIND, Runs("partitions")),
    _CONFIG,
    Integer("num_update_calls", 0, _MOST),
    Integer("latest_time", 0, MAX_TIME),
    Flag("is_link"),
    Flag("with_expired"),
    Flag("keeps_cut"),
    Rate("rate"),
    _THREADS,
)
_SOURCES = Files(
    "sources",
    *(_FOLDER, _FILE, _KIND, Runs("partitions")),
    *(Integer("num_rows", 0, _MOST), Integer("num_bytes", 0, _MOST)),
    Text("crc32c", 8, "[0-9a-f]{8}"),
    Integer("layer", 0, _MAX_FILES),
)
_LOAD = Fields(
    "request",
    _CONFIG,
    Runs("partitions"),
    Shard("shard"),
    _SOURCES,
    Text("where", _MAX_DOCUMENT),
    _THREADS,
    Flag("is_check"),
)

FILE_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "job_state": Read(_JOB),
        #
        "hurry_job": Write(_JOB),
        "start_load": Write(_JOB, _LOAD),
        "start_save": Write(_JOB, Integer("cut", 0, _MOST), _SAVE),
        "stop_job": Write(_JOB),
    }
)
"""Verbs of a `ShardHost` besides `SHARD_VERBS`."""
