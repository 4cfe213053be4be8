"""URIs of streams, which stand where a source takes the paths of files.

tail:FOLDER[?pattern=*.jsonl]                         a folder whose files appear and grow
kafka://HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC][?group=G&start=earliest]        topics of Kafka
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote

if TYPE_CHECKING:
    pass

TAIL, KAFKA = "tail", "kafka"

_FORMATS = (
    "tail:FOLDER, or kafka://HOST:PORT/TOPIC[,TOPIC]?group=NAME&start=earliest, latest or a time"
)
_SERVER = re.compile(r"(?:[^\s:,/\[\]]+|\[[0-9a-fA-F:]+\]):\d{1,5}")
OPTIONS = MappingProxyType(
    {
        TAIL: ("pattern",),
        KAFKA: ("group", "start", "format", "event_time", "lateness", "settings"),
    }
)
"""Scheme -> names of its options."""


def is_stream_uri(path: object) -> bool:
    """Whether a path is the URI of a stream.

    Example:
        >>> is_stream_uri("tail:clicks"), is_stream_uri("kafka://a:1/t"), is_stream_uri("clicks/")
        (True, True, False)
    """
    return isinstance(path, str) and path.startswith((f"{TAIL}:", f"{KAFKA}://"))


@dataclass(frozen=True)
class StreamUri:
    """A URI of a stream in its parts.

    Attributes:
        scheme: "tail" or "kafka".
        place: Folder, or servers with commas between them.
        topics: Topics of Kafka.
        options: Options after the question mark.

    Example:
        >>> StreamUri.of("kafka://a:9092/clicks,views?start=latest").topics
        ('clicks', 'views')
    """

    scheme: str
    place: str
    topics: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> "StreamUri":
        """Return the parts of a URI.

        Raises:
            ValueError: The text is no URI of a stream, or an option is unknown.
        """
        if not is_stream_uri(text):
            raise ValueError(f"[stream] expected {_FORMATS}, got {text!r}")
        scheme, _, rest = text.partition(":")
        where, _, query = rest.partition("?")
        options = _read_options(scheme, query, text)
        if scheme == TAIL:
            if not where:
                raise ValueError(f"[stream] expected a folder after tail:, got none ({text!r})")
            return cls(TAIL, unquote(where), (), options)
        servers, _, names = where.removeprefix("//").partition("/")
        for server in servers.split(","):
            if _SERVER.fullmatch(server) is None:
                raise ValueError(
                    f"[stream] expected HOST:PORT after kafka://, got {server!r} ({text!r})"
                )
        topics = tuple(unquote(name) for name in names.split(","))
        if not all(topics):
            raise ValueError(
                f"[stream] expected a topic after kafka://{servers}/, got {names!r} ({text!r})"
            )
        return cls(KAFKA, servers, topics, options)

    def starting(self, start: str) -> str:
        """Return the URI with another start.

        Raises:
            ValueError: A folder is read from its first file on.
        """
        if self.scheme == TAIL:
            if start != "earliest":
                raise ValueError(
                    f"[stream] expected earliest as the start of tail:{self.place}, got {start!r}: "
                    "a folder is read from its first file on; choose files by ?pattern="
                )
            return str(self)
        return str(StreamUri(KAFKA, self.place, self.topics, {**self.options, "start": start}))

    def __str__(self) -> str:
        where = quote(self.place, "/:,[]") if self.scheme == TAIL else f"//{self.place}/"
        options = "&".join(f"{name}={quote(value)}" for name, value in self.options.items())
        return f"{self.scheme}:{where}{','.join(self.topics)}" + (f"?{options}" if options else "")


def _read_options(scheme: str, query: str, text: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = OPTIONS[scheme]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"[stream] expected options of {', '.join(known)}, got {name!r} ({text!r}){hint}"
            )
    return options
