"""A data service: processes that read and parse data for trainers."""

from monolith.cluster.data_service.service_clients import ServiceOptions
from monolith.cluster.data_service.service_process import (
    DataWorkerProcess,
    DispatcherProcess,
    ListenOptions,
)
from monolith.cluster.data_service.service_source import ServiceSource

__all__ = [
    "DataWorkerProcess",
    "DispatcherProcess",
    "ListenOptions",
    "ServiceOptions",
    "ServiceSource",
]
