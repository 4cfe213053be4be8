"""What controls a run from outside: its controller, and the application master of a cluster."""

from monolith.control.app_master import AppMaster
from monolith.control.control_requests import ControlRequests
from monolith.control.controlled import (
    BarrierAlreadyPlacedError,
    BlockStatus,
    Controlled,
    Operated,
    RowValues,
    RunStatus,
    SavedCheckpoint,
    WorkerState,
    WorkerStatus,
)
from monolith.control.controller_client import ControllerClient, ControllerStub
from monolith.control.controller_server import ControllerServer, ControlOptions
from monolith.control.run_files import ADDRESS_FILE, CERTIFICATE_FILE, TOKEN_FILE

__all__ = [
    "ADDRESS_FILE",
    "AppMaster",
    "BarrierAlreadyPlacedError",
    "BlockStatus",
    "CERTIFICATE_FILE",
    "ControlOptions",
    "ControlRequests",
    "Controlled",
    "ControllerClient",
    "ControllerServer",
    "ControllerStub",
    "Operated",
    "RowValues",
    "RunStatus",
    "SavedCheckpoint",
    "TOKEN_FILE",
    "WorkerState",
    "WorkerStatus",
]
