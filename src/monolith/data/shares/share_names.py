"""Names of shares: short JSON texts that are the same in every process.

{"file":"/data/a.parquet","size":9125}            all samples of a file
{"file":..., "size":..., "rows":[80,120,2]}       rows 80 to 119, from row group 2 on
{"file":..., "size":..., "copy":1}                a file that the source lists a second time
{"batches":0,"of":2,"stream":"5d1c7e90b2f3a846"}  batches 0, 2, ... of a stream
{"whole":true}                                    everything, of a job with one worker
"""

import json
from dataclasses import dataclass
from typing import Any

from monolith.data.files.parquet import RowRange

_EXAMPLE = '{"file":"/data/a.parquet","size":9125}'


@dataclass(frozen=True, slots=True)
class FileShare:
    """Names the samples of a file, or of a range of its rows.

    Args:
        path: path of the file.
        size: size of the file in bytes.
        rows: rows of the share; None means all rows.
        copy: how often the source lists the path before this file.
    """

    path: str
    size: int
    rows: RowRange | None = None
    copy: int = 0

    def __str__(self) -> str:
        fields: dict[str, Any] = {"file": self.path, "size": self.size}
        if self.rows is not None:
            fields["rows"] = [self.rows.first, self.rows.end, self.rows.part]
        if self.copy:
            fields["copy"] = self.copy
        return _text(fields)


@dataclass(frozen=True, slots=True)
class StrideShare:
    """Names batches index, index + count, ... of a stream.

    Args:
        index: number of the first batch.
        count: number of shares of the stream.
        stream: digest of the stages and files of a pipeline; empty for another source.
    """

    index: int
    count: int
    stream: str

    def __str__(self) -> str:
        return _text({"batches": self.index, "of": self.count, "stream": self.stream})


@dataclass(frozen=True, slots=True)
class WholeShare:
    """Names everything that a source gives, with its repetitions."""

    def __str__(self) -> str:
        return _text({"whole": True})


def read_name(name: str) -> FileShare | StrideShare | WholeShare:
    """Return what a name says.

    Raises:
        ValueError: the text is not the name of a share.

    Example:
        >>> read_name(str(StrideShare(1, 2, "")))
        StrideShare(index=1, count=2, stream='')
    """
    share = None
    try:
        share = _share(json.loads(name))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _refusal(name) from error
    if share is None or str(share) != name:
        raise _refusal(name)
    return share


def _share(fields: dict[str, Any]) -> FileShare | StrideShare | WholeShare:
    if "file" in fields:
        rows = RowRange(*fields["rows"]) if "rows" in fields else None
        return FileShare(fields["file"], fields["size"], rows, fields.get("copy", 0))
    if "batches" in fields:
        return StrideShare(fields["batches"], fields["of"], fields["stream"])
    return WholeShare()


def _refusal(name: str) -> ValueError:
    return ValueError(
        f"[Shares.open] expected the name of a share, such as {_EXAMPLE}, got {name!r}; take it "
        "from Shares.names()"
    )


def _text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
