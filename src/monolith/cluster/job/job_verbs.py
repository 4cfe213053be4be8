"""The verbs of a `JobHost`, with the checks of their arguments."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from monolith.cluster.host_verbs import Argument, Checked, Flag, Integer, Name, Read, Verb, Write
from monolith.cluster.server_verbs import Clients, NamedValues, Text

_MOST = (1 << 63) - 1
_MAX_JSON = 1 << 28  # characters


class SomeValues(NamedValues):
    """A list of different (name, tensor), which may be empty."""

    def _check(self, call: Checked, value: Any) -> None:
        if value != []:
            super()._check(call, value)


class Json(Argument):
    """A string with JSON. The shares of a large job are longer than other texts."""

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not str or not 1 <= len(value) <= _MAX_JSON:
            raise call.error(f"{self.name} as a string of 1 to {_MAX_JSON} characters", value)
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            raise call.error(f"{self.name} as JSON", str(error)) from error


class Words(Argument):
    """A string, which may be empty."""

    def _check(self, call: Checked, value: Any) -> None:
        if value != "":
            Text(self.name)._check(call, value)


_WORKER, _START = Integer("worker", 0, (1 << 20) - 1), Integer("start", 0, _MOST)
_ACKNOWLEDGED = Integer("acknowledged", 0, _MOST)
_WHO = (_WORKER, _START)
_PARK = Integer("park", 0, 1 << 40)
_MILLIS = Integer("milliseconds", 0, 1 << 40)
_FLAGS = Name("name"), Integer("size", 1, 1 << 20)

JOB_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "describe_job": Read(),
        "export_dense": Read(),
        "export_job": Read(),
        "job_number": Read(_WORKER),
        "read_dense": Read(Integer("known", -1, _MOST)),
        "read_flags": Read(*_FLAGS),
        "read_text": Read(Name("name")),
        "start_values": Read(),
        "watch_job": Read(*_WHO, Integer("number", 0, _MOST), _ACKNOWLEDGED),
        "wait_held": Read(Integer("hold", 1, _MOST), _MILLIS),
        "worker_facts": Read(),
        #
        "end_job": Write(),
        "give_up_workers": Write(Clients("workers")),
        "hold_job": Write(_WORKER, _MILLIS),
        "import_dense": Write(
            Integer("version", 0, _MOST), SomeValues("values"), Json("tree"), SomeValues("tensors")
        ),
        "import_job": Write(Json("state"), Flag("with_workers")),
        "join_job": Write(*_WHO, Clients("clients"), Json("facts"), Json("held")),
        "leave_job": Write(*_WHO, _ACKNOWLEDGED),
        "note_held": Write(*_WHO, Integer("hold", 1, _MOST), _ACKNOWLEDGED),
        "note_parked": Write(*_WHO, _PARK, _ACKNOWLEDGED),
        "note_lost": Write(Integer("pushes", 0, _MOST)),
        "offer_shares": Write(Json("names"), Integer("epochs", -1, _MOST)),
        "park_job": Write(_PARK),
        "release_job": Write(Integer("hold", 1, _MOST)),
        "set_flag": Write(*_FLAGS, Integer("index", 0, 1 << 20), Flag("value")),
        "set_ready": Write(),
        "set_start_values": Write(SomeValues("values")),
        "set_steps": Write(Integer("number", 0, _MOST)),
        "set_text": Write(Name("name"), Words("text")),
        "step_job": Write(
            *_WHO,
            Integer("number", 1, _MOST),
            SomeValues("gradients"),
            Words("options"),
            Words("progress"),
            Flag("wants_values"),
        ),
        "stop_workers": Write(),
        "take_share": Write(*_WHO, _ACKNOWLEDGED, Json("finished")),
        "unpark_job": Write(_PARK),
    }
)
"""Verbs of the host of a job on one server."""
