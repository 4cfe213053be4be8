"""The core of a native table for the length of a call."""

from types import TracebackType

import monolith._native as _native

__all__ = ["OpenCore"]


class OpenCore:
    """Gives the core in a `with`, and names verb and table where memory runs out.

    Args:
        core: lives until the call ends, also if the table is closed.
        verb: of the table.
        name: of the table.
    """

    __slots__ = ("_core", "_name", "_verb")

    def __init__(self, core: _native.Table, verb: str, name: str) -> None:
        self._core, self._verb, self._name = core, verb, name

    def __enter__(self) -> _native.Table:
        return self._core

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, MemoryError):
            raise MemoryError(f"[Table.{self._verb}] {error} (table {self._name!r})") from error
