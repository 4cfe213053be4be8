"""The clients of a server: who is connected, and what each may still send and be sent."""

import collections
import dataclasses

from monolith.cluster.wire.message import Message

OPEN_FRAME_BYTES = 256 << 20
"""Most bytes of a frame at an address where anybody who can connect can send."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What clients may ask of a server.

    Args:
        window_messages: calls of a client without an answer.
        window_bytes: bytes of these calls; a call alone may have more.
        answer_bytes: bytes of answers that a client has not taken before its calls wait.
        running: calls of a client that are done at once; so many answers may come beyond
            `answer_bytes`.
        sessions: number of clients.
        callers: callers of a client, each counted on each host that it calls, until its last call.
        lease_seconds: how long a client is kept that says nothing.
        message_bytes: bytes of a call with all its frames; checked when all are here.
        frame_bytes: bytes of a frame, beyond which a connection ends before the frame is read; None
            is `message_bytes` where only trusted processes can send, and 256 MiB elsewhere.
    """

    window_messages: int = 64
    window_bytes: int = 256 << 20
    answer_bytes: int = 512 << 20
    running: int = 8
    sessions: int = 4096
    callers: int = 4096
    lease_seconds: float = 60.0
    message_bytes: int = 1 << 32
    frame_bytes: int | None = None

    def with_frames(self, *, is_trusted: bool) -> "Limits":
        """Return the limits with a number of bytes of a frame."""
        if self.frame_bytes is not None:
            return self
        of_any = min(self.message_bytes, OPEN_FRAME_BYTES)
        return dataclasses.replace(self, frame_bytes=self.message_bytes if is_trusted else of_any)


class Session:
    """A client.

    Attributes:
        route: where its answers go.
        callers: ids of the callers in the process of the client, each with a host that it calls.
        num_calls: calls without an answer.
        call_bytes: bytes of these calls.
        unread_bytes: bytes of answers that the client has not said to have.
        num_running: calls that the pool has begun.
        waiting: calls that have not begun, with the time of their arrival.
        last_heard: time of the last message.
    """

    def __init__(self, number: int, route: bytes, now: float) -> None:
        self.number, self.route, self.last_heard = number, route, now
        self.callers: set[tuple[int, int]] = set()
        self.num_calls = self.call_bytes = self.num_running = 0
        self._sent_bytes = self._received_bytes = 0
        self.waiting: collections.deque[tuple[Message, float]] = collections.deque()

    @property
    def unread_bytes(self) -> int:
        return self._sent_bytes - self._received_bytes

    def admit(self, caller: int, host: int, limits: Limits) -> bool:
        """Note a caller of a host; return whether there is room for it."""
        if len(self.callers) >= limits.callers and (caller, host) not in self.callers:
            return False
        self.callers.add((caller, host))
        return True

    def may_begin(self, limits: Limits) -> bool:
        """Whether another call may begin."""
        return self.num_running < limits.running and self.unread_bytes <= limits.answer_bytes

    def hear(self, now: float, received: int) -> None:
        """Note a message."""
        self.last_heard = now
        self._received_bytes = max(self._received_bytes, min(received, self._sent_bytes))

    def sent(self, num_bytes: int) -> None:
        """Note an answer."""
        self._sent_bytes += num_bytes

    def reconnect(self, route: bytes) -> None:
        """Begin anew on another socket: calls come again, and answers on the way are lost."""
        self.route = route
        self.num_calls = self.call_bytes = self._sent_bytes = self._received_bytes = 0
        self.waiting.clear()


class Sessions:
    """The clients of a server by number and by socket. Not thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_number: dict[int, Session] = {}
        self._by_route: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def all(self) -> list[Session]:
        """Return the clients."""
        return list(self._by_number.values())

    def greet(self, number: int, route: bytes, now: float) -> Session | None:
        """Return the client of a greeting; None where there is no room for another."""
        session = self._by_number.get(number)
        if session is None:
            other = self._by_route.get(route)
            if other is not None:
                self.remove(other)  # one socket is one client
            if len(self._by_number) >= self._limits.sessions:
                return None
            session = self._by_number[number] = Session(number, route, now)
        else:
            self._by_route.pop(session.route, None)
            session.reconnect(route)
            session.last_heard = now
        self._by_route[route] = session
        return session

    def of_route(self, route: bytes) -> Session | None:
        """Return the client of a socket, if it has greeted."""
        return self._by_route.get(route)

    def remove(self, session: Session) -> None:
        """Forget a client."""
        self._by_number.pop(session.number, None)
        self._by_route.pop(session.route, None)

    def expired(self, now: float) -> list[Session]:
        """Return the clients whose lease has ended."""
        oldest = now - self._limits.lease_seconds
        return [s for s in self._by_number.values() if s.last_heard < oldest]
