"""The verbs of the data service; those of any host are in `host_verbs.py`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from monolith.cluster.host_verbs import Checked, Integer, Name, Read, Verb, Write
from monolith.cluster.server_verbs import Text

_MOST = (1 << 63) - 1
MAX_READERS = 1 << 16
"""Most data workers for which a source is divided."""


class EpochCount(Integer):
    """The number of epochs of the data; -1 has no end."""

    def __init__(self, name: str) -> None:
        super().__init__(name, -1, _MOST)

    def _check(self, call: Checked, value: Any) -> None:
        super()._check(call, value)
        if value == 0:
            raise call.error(f"{self.name} of at least 1, or -1", value)


DISPATCHER_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "data_shares": Read(),
        "data_workers": Read(),
        "describe_service": Read(),
        #
        "join_service": Write(
            Name("address"), Text("names"), EpochCount("num_epochs"), Text("facts")
        ),
        "open_reading": Write(Name("reading"), Text("state")),
        "take_data": Write(Name("reading"), Integer("wants", 0, 1), Text("report")),
    }
)
"""Verbs of a dispatcher."""

DATA_WORKER_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "describe_service": Read(),
        "read_batch": Read(
            Integer("stream", 0, _MOST), Integer("number", 0, _MOST), Integer("taken", 0, _MOST)
        ),
        #
        "close_stream": Write(Integer("stream", 0, _MOST)),
        "open_stream": Write(Text("share"), Text("position")),
    }
)
"""Verbs of a data worker."""
