"""Read how many rows of which table a shard of a dump of many tables has."""

from collections.abc import Sequence

from monolith.checkpoint.reference_dump.dump_files import DumpFolder
from monolith.errors import DataLossError
from monolith.util.protobuf import fields
from monolith.util.tfrecord import tfrecord_records

Runs = Sequence[tuple[str, int | None]]
"""Tables whose rows follow each other in a file, and the numbers of rows; None for all rows."""

_NAME, _COUNT = 1, 2
_MAX_BYTES = 1 << 26


def read_runs(folder: DumpFolder, file: str) -> list[tuple[str, int]]:
    """Return the name and the number of rows of each table of a shard, in the order of the rows.

    Args:
        folder: folder of the dump.
        file: name of the metadata file of the shard.

    Raises:
        DataLossError: the file is damaged.
    """
    where = folder.where(file)
    size = folder.size(file)
    if size > _MAX_BYTES:
        raise DataLossError(
            f"[reference dump] expected at most {_MAX_BYTES} bytes of metadata, got {size} "
            f"({where}); the file is damaged or foreign"
        )
    data, runs = b"".join(folder.chunks(file, size or 1)), []
    for at, record in tfrecord_records(data, where):
        try:
            values = dict(fields(record))
            name, count = values[_NAME], values.get(_COUNT, 0)
            if not isinstance(name, bytes) or not isinstance(count, int):
                raise DataLossError("[protobuf] expected a name and a number, got other fields")
            runs.append((name.decode(), count))
        except (DataLossError, KeyError, UnicodeDecodeError) as error:
            raise DataLossError(
                f"[reference dump] expected MultiHashTableMetadata, got another message ({where}, "
                f"record at byte {at}); the file is damaged or foreign"
            ) from error
    return runs
