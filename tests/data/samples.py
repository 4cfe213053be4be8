"""Files and tables that several tests read."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from monolith import data


def table(num_samples=100, first=0):
    """Sample i has user i, items i .. i + i % 3 - 1, price i / 4 and label i % 2."""
    number = np.arange(first, first + num_samples)
    return pa.table(
        {
            "user": number,
            "items": [[int(i) + j for j in range(i % 3)] for i in number],
            "price": (number / 4).astype(np.float32),
            "label": (number % 2).astype(np.float32),
        }
    )


def write_parquet(folder, num_files=4, num_samples=50, row_group_size=20):
    """Files part-0.parquet ...; users count on from file to file."""
    for i in range(num_files):
        rows = table(num_samples, i * num_samples)
        pq.write_table(rows, folder / f"part-{i}.parquet", row_group_size=row_group_size)
    return f"{folder}/*.parquet"


def users(batches):
    """The users of all batches, in order."""
    return [user for batch in batches for row in batch.features["user"].to_lists() for user in row]


def memory(num_samples=10):
    """A pipeline over `table`."""
    return data.arrow_table(table(num_samples))


def num_bytes_read():
    """The bytes that this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])
