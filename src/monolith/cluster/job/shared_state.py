"""`SharedState`: flags and texts that all processes of a job read and write."""

import threading
from typing import Any, Protocol

import torch

from monolith.errors import InvalidArgumentError

# A server keeps what clients write until it ends.
_MAX_FLAGS = 1 << 22
_MAX_CHARACTERS = 1 << 26


class SharedState(Protocol):
    """Flags and texts by name. Thread-safe.

    A vector of flags is made when the first of them is set, all False; a text is empty at first.
    """

    def set_flag(self, name: str, size: int, index: int, value: bool) -> None:
        """Set one flag of a vector of `size` flags."""

    def flags(self, name: str, size: int) -> list[bool]:
        """Return all flags of a vector."""

    def set_text(self, name: str, text: str) -> None:
        """Replace a text."""

    def text(self, name: str) -> str:
        """Return a text."""


class LocalSharedState:
    """The shared state of a job whose roles are threads of one process.

    Example:
        >>> shared = LocalSharedState()
        >>> shared.set_flag("ready", 2, 1, True)
        >>> shared.flags("ready", 2), shared.text("result")
        ([False, True], '')
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flags: dict[str, list[bool]] = {}
        self._num_flags = 0
        self._texts: dict[str, str] = {}

    def set_flag(self, name: str, size: int, index: int, value: bool) -> None:
        """See `SharedState`."""
        with self._lock:
            flags = self._vector(name, size)
            if name not in self._flags and self._num_flags + size > _MAX_FLAGS:
                raise InvalidArgumentError(
                    f"[SharedState.set_flag] expected at most {_MAX_FLAGS} flags in all vectors, "
                    f"got {self._num_flags + size} (flags {name!r}); use shorter vectors"
                )
            if not 0 <= index < size:
                raise InvalidArgumentError(
                    f"[SharedState.set_flag] expected an index in [0, {size}), got {index} "
                    f"(flags {name!r})"
                )
            if name not in self._flags:
                self._flags[name], self._num_flags = flags, self._num_flags + size
            flags[index] = value

    def flags(self, name: str, size: int) -> list[bool]:
        """See `SharedState`."""
        with self._lock:
            return list(self._vector(name, size))

    def _vector(self, name: str, size: int) -> list[bool]:
        flags = self._flags.get(name) or [False] * size
        if len(flags) != size:
            raise InvalidArgumentError(
                f"[SharedState] expected {len(flags)} flags, as the vector was made with, got "
                f"{size} (flags {name!r})"
            )
        return flags

    def set_text(self, name: str, text: str) -> None:
        """See `SharedState`."""
        with self._lock:
            others = sum(len(n) + len(old) for n, old in self._texts.items() if n != name)
            if others + len(text) > _MAX_CHARACTERS:
                raise InvalidArgumentError(
                    f"[SharedState.set_text] expected at most {_MAX_CHARACTERS} characters in all "
                    f"texts, got {others + len(text)} (text {name!r}); write shorter texts"
                )
            self._texts[name] = text

    def text(self, name: str) -> str:
        """See `SharedState`."""
        with self._lock:
            return self._texts.get(name, "")


class AskedServers(Protocol):
    """Servers of which one can be asked: `RemoteServers`."""

    def ask(self, server: int, verb: str, *arguments: Any) -> Any:
        """Return the answer of one server itself to a call."""


class ValuesSharedState:
    """The shared state of processes before their job begins: named values of server 0.

    Args:
        servers: Servers, of which the first holds the state.
    """

    def __init__(self, servers: AskedServers) -> None:
        self._servers = servers

    def set_flag(self, name: str, size: int, index: int, value: bool) -> None:
        """See `SharedState`."""
        if not 0 <= index < size:
            raise InvalidArgumentError(
                f"[SharedState.set_flag] expected an index in [0, {size}), got {index} (flags "
                f"{name!r})"
            )
        self._write(_flag_name(name, index), torch.tensor([value], device="cpu"))

    def flags(self, name: str, size: int) -> list[bool]:
        """See `SharedState`."""
        names = [_flag_name(name, index) for index in range(size)]
        values = self._read(names)
        return [name in values and bool(values[name]) for name in names]

    def set_text(self, name: str, text: str) -> None:
        """See `SharedState`."""
        self._write(
            f"text {name}", torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
        )

    def text(self, name: str) -> str:
        """See `SharedState`."""
        values = self._read([f"text {name}"])
        return "".join(bytes(value.tolist()).decode() for value in values.values())

    def _write(self, name: str, value: torch.Tensor) -> None:
        self._servers.ask(0, "write_values", [(name, value)])

    def _read(self, names: list[str]) -> dict[str, torch.Tensor]:
        known = set(self._servers.ask(0, "value_names"))
        wanted = [name for name in names if name in known]
        values = self._servers.ask(0, "read_values", wanted) if wanted else []
        return dict(zip(wanted, values, strict=True))


def _flag_name(name: str, index: int) -> str:
    return f"flag {name} {index}"
