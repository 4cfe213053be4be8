"""Data services in this process, for tests."""

import contextlib

import pyarrow as pa
import pyarrow.parquet as pq

from monolith import data
from monolith.cluster.data_service import (
    DataWorkerProcess,
    DispatcherProcess,
    ServiceOptions,
    ServiceSource,
)


def write_files(folder, num_files=4, num_rows=20):
    """Writes Parquet files, in which user 100 * f + r is row r of file f."""
    folder.mkdir(exist_ok=True)
    for number in range(num_files):
        users = [100 * number + row for row in range(num_rows)]
        table = pa.table({"user": users, "price": [0.5] * num_rows, "label": [1.0] * num_rows})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=5)
    return folder


def pipeline(folder, batch=5, epochs=1):
    return data.parquet(folder).repeat(epochs).batch(batch)


def users_of(batches):
    return [user for batch in batches for (user,) in batch.features["user"].to_lists()]


@contextlib.contextmanager
def service(make_source, num_workers=2, num_readers=None, **options):
    """Gives a source that reads from a dispatcher and data workers of this process."""
    readers = num_workers if num_readers is None else num_readers
    with DispatcherProcess(num_readers=readers) as dispatcher, contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(DataWorkerProcess(make_source, dispatcher.address))
            for _ in range(num_workers)
        ]
        given = {"away_seconds": 0.3, "timeout_seconds": 20.0, **options}
        source = ServiceSource(ServiceOptions(dispatcher.address, **given))
        yield source, dispatcher, workers
