from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SucceedRequest(_message.Message):
    __slots__ = ("exit_code", "diagnose", "graceful_shutdown_timeout_ms")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSE_FIELD_NUMBER: _ClassVar[int]
    GRACEFUL_SHUTDOWN_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    diagnose: str
    graceful_shutdown_timeout_ms: _wrappers_pb2.Int64Value
    def __init__(self, exit_code: _Optional[int] = ..., diagnose: _Optional[str] = ..., graceful_shutdown_timeout_ms: _Optional[_Union[_wrappers_pb2.Int64Value, _Mapping]] = ...) -> None: ...

class SucceedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KillRequest(_message.Message):
    __slots__ = ("exit_code", "diagnose", "graceful_shutdown_timeout_ms")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSE_FIELD_NUMBER: _ClassVar[int]
    GRACEFUL_SHUTDOWN_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    diagnose: str
    graceful_shutdown_timeout_ms: _wrappers_pb2.Int64Value
    def __init__(self, exit_code: _Optional[int] = ..., diagnose: _Optional[str] = ..., graceful_shutdown_timeout_ms: _Optional[_Union[_wrappers_pb2.Int64Value, _Mapping]] = ...) -> None: ...

class KillResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateSavepointRequest(_message.Message):
    __slots__ = ("savepoint_dir",)
    SAVEPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    savepoint_dir: str
    def __init__(self, savepoint_dir: _Optional[str] = ...) -> None: ...

class CreateSavepointResponse(_message.Message):
    __slots__ = ("code", "message", "savepoint_id")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SAVEPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    savepoint_id: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., savepoint_id: _Optional[str] = ...) -> None: ...

class CreateSavepointStatusRequest(_message.Message):
    __slots__ = ("savepoint_restore_id",)
    SAVEPOINT_RESTORE_ID_FIELD_NUMBER: _ClassVar[int]
    savepoint_restore_id: str
    def __init__(self, savepoint_restore_id: _Optional[str] = ...) -> None: ...

class CreateSavepointStatusResponse(_message.Message):
    __slots__ = ("code", "message", "create_savepoint_state")
    class CreateSavepointState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PENDING: _ClassVar[CreateSavepointStatusResponse.CreateSavepointState]
        RUNNING: _ClassVar[CreateSavepointStatusResponse.CreateSavepointState]
        SUCCEEDED: _ClassVar[CreateSavepointStatusResponse.CreateSavepointState]
        FAILED: _ClassVar[CreateSavepointStatusResponse.CreateSavepointState]
    PENDING: CreateSavepointStatusResponse.CreateSavepointState
    RUNNING: CreateSavepointStatusResponse.CreateSavepointState
    SUCCEEDED: CreateSavepointStatusResponse.CreateSavepointState
    FAILED: CreateSavepointStatusResponse.CreateSavepointState
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATE_SAVEPOINT_STATE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    create_savepoint_state: CreateSavepointStatusResponse.CreateSavepointState
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., create_savepoint_state: _Optional[_Union[CreateSavepointStatusResponse.CreateSavepointState, str]] = ...) -> None: ...
