"""Verbs of a server itself, and their arguments, which are checked on arrival."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from monolith.cluster.host_verbs import Argument, Checked, Integer, Name, Read, Verb, Write
from monolith.table.config import NUM_PARTITIONS
from monolith.table.routing import FloorModRouting, PartitionRouting, Routing

ROUTINGS: Mapping[str, type[Routing]] = MappingProxyType(
    {routing.__name__: routing for routing in (PartitionRouting, FloorModRouting)}
)
"""Routings that a client can name."""

VALUE_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
"""Dtypes of dense values."""

_MAX_TEXT = 1 << 24  # characters of JSON
_MAX_NAMES = 1 << 16


class Text(Argument):
    """A string, such as JSON, that is not empty."""

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not str or not 1 <= len(value) <= _MAX_TEXT:
            raise call.error(f"{self.name} as a string of 1 to {_MAX_TEXT} characters", value)


class PlacementFields(Argument):
    """The fields of a `Placement`: a tuple (name of the routing, number of shards, shard)."""

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not tuple or list(map(type, value)) != [str, int, int]:
            raise call.error(f"{self.name} as a tuple (routing, number of shards, shard)", value)
        kind, num_shards, shard = value
        if kind not in ROUTINGS:
            raise call.error(f"a routing, one of {', '.join(ROUTINGS)}", kind)
        if not 1 <= num_shards <= NUM_PARTITIONS or not 0 <= shard < num_shards:
            raise call.error(
                f"a shard of 1 to {NUM_PARTITIONS}", f"shard {shard} of {num_shards}"[:100]
            )


class Names(Argument):
    """A list of different names."""

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not list or not 1 <= len(value) <= _MAX_NAMES:
            raise call.error(f"{self.name} as a list of 1 to {_MAX_NAMES} names", value)
        name = Name(self.name)
        for item in value:
            name._check(call, item)
        if len(set(value)) < len(value):
            raise call.error(f"{self.name} with different names", value)


class NamedValues(Argument):
    """A list of different (name, tensor), within the limit of a message."""

    def _check(self, call: Checked, value: Any) -> None:
        is_pairs = type(value) is list and all(type(p) is tuple and len(p) == 2 for p in value)
        if not is_pairs:
            raise call.error(f"{self.name} as a list of (name, tensor)", value)
        Names(f"names of {self.name}")._check(call, [name for name, _ in value])
        num_bytes = 0
        for name, tensor in value:
            if not _is_plain(tensor):
                text = f"{self.name} as contiguous CPU tensors, which {name!r} should be"
                raise call.error(text, getattr(tensor, "dtype", tensor))
            num_bytes += tensor.numel() * tensor.element_size()
        if num_bytes > call.facts.max_message_bytes:
            most = call.facts.max_message_bytes
            raise call.error(f"{self.name} of at most {most} bytes in all", num_bytes)


def _is_plain(value: object) -> bool:
    if type(value) is not torch.Tensor or value.dtype not in VALUE_DTYPES:
        return False
    return value.layout == torch.strided and value.is_cpu and value.is_contiguous()


class Clients(Argument):
    """A list of numbers, such as those of callers."""

    def _check(self, call: Checked, value: Any) -> None:
        is_list = type(value) is list and 1 <= len(value) <= _MAX_NAMES
        if not is_list or not all(type(n) is int and 0 <= n < 1 << 63 for n in value):
            raise call.error(f"{self.name} as a list of 1 to {_MAX_NAMES} numbers", value)


_NAMES = Names("names")
_CHANGES_BYTES = Integer("changes_bytes", 0, (1 << 63) - 1)

SERVER_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "clients_state": Read(),
        "describe": Read(),
        "read_values": Read(_NAMES),
        "table_names": Read(),
        "value_names": Read(),
        #
        "fence": Write(Clients("clients")),
        "open_group": Write(_NAMES),
        "open_job": Write(Integer("num_workers", 1, 1 << 20)),
        "open_table": Write(Text("config"), PlacementFields("placement"), _CHANGES_BYTES),
        "renumber": Write(Integer("index", 0, 1 << 20), Integer("num_servers", 1, 1 << 20)),
        "restore_clients": Write(Text("state")),
        "write_values": Write(NamedValues("values")),
    }
)
"""Verbs of the server itself, which is host 0 of a `ServerHost`."""
