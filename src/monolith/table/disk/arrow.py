"""Conversion of rows and candidates to Arrow record batches and back, without copies."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from monolith.table.config import TableConfig, column_dtypes, column_sizes
from monolith.table.disk.ranges import Run, text_of
from monolith.table.eviction import candidate_columns
from monolith.table.rows import Rows

_KEY = "key"
_TIME = "time"


def _arrow_type(dtype: str) -> pa.DataType:
    """Return the Arrow type of a dtype; bfloat16 has none, its bits are stored as uint16."""
    name = {"bfloat16": "uint16", "float16": "float16"}.get(dtype, dtype)
    return getattr(pa, name)()


def _list_type(dtype: str, size: int) -> pa.DataType:
    return pa.list_(pa.field("item", _arrow_type(dtype), nullable=False), size)


def row_schema(config: TableConfig, metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the schema key, time, `weight/<segment>`, `state/<segment>/<name>`; without nulls."""
    dtypes, sizes = column_dtypes(config), column_sizes(config)
    fields = [pa.field(name, pa.int64(), nullable=False) for name in (_KEY, _TIME)]
    fields += [
        pa.field(name, _list_type(dtypes[name], size), nullable=False)
        for name, size in sizes.items()
    ]
    return pa.schema(fields, metadata)


def candidate_schema(config: TableConfig, metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the schema of the int64 columns of `Table.export_candidates`."""
    fields = [pa.field(name, pa.int64(), nullable=False) for name in candidate_columns(config)]
    return pa.schema(fields, metadata)


def tombstone_schema(metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the schema of the keys of removed rows."""
    return pa.schema([pa.field(_KEY, pa.int64(), nullable=False)], metadata)


def metadata_of(
    version: int, config: Any, num_update_calls: int, runs: Sequence[Run]
) -> dict[str, str]:
    """Return the metadata about a table in the schema of each file."""
    return {
        "monolith.format_version": str(version),
        "monolith.config": json.dumps(config),
        "monolith.seed": str(config["seed"]),
        "monolith.num_update_calls": str(num_update_calls),
        "monolith.partitions": text_of(runs),
    }


def tensors_of_rows(rows: Rows) -> dict[str, torch.Tensor]:
    """Return all columns of a chunk by their names in files."""
    return {_KEY: rows.keys, _TIME: rows.times, **rows.columns}


def make_batch(schema: pa.Schema, tensors: Mapping[str, torch.Tensor]) -> pa.RecordBatch:
    """Return a record batch on the memory of the tensors."""
    arrays = [_array(field.type, tensors[field.name]) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, tensor: torch.Tensor) -> pa.Array:
    # One value is contiguous for any stride, but a view as bytes needs stride 1.
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    buffer = pa.py_buffer(flat.view(torch.uint8).numpy())
    if not pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, len(tensor), [None, buffer])
    values = pa.Array.from_buffers(kind.value_type, tensor.numel(), [None, buffer])
    return pa.Array.from_buffers(kind, len(tensor), [None], children=[values])


def rows_of_batch(batch: pa.RecordBatch, memory: torch.Tensor, config: TableConfig) -> Rows:
    """Return the rows of a batch of `row_schema` in `memory`, on that memory."""
    tensors = columns_of_batch(batch, memory)
    dtypes = column_dtypes(config)
    columns = {name: tensors[name].view(getattr(torch, dtype)) for name, dtype in dtypes.items()}
    return Rows(tensors[_KEY], tensors[_TIME], columns)


def columns_of_batch(batch: pa.RecordBatch, memory: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the columns of a batch whose buffers lie in `memory`, a tensor of bytes.

    Raises:
        ValueError: a column has nulls, or lies elsewhere than it was written.
    """
    batch.validate()
    return {
        name: _tensor(name, column, memory)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def _tensor(name: str, column: pa.Array, memory: torch.Tensor) -> torch.Tensor:
    shape: tuple[int, ...] = (len(column),)
    values, start, has_nulls = column, column.offset, column.null_count > 0
    if pa.types.is_fixed_size_list(column.type):
        shape = (len(column), column.type.list_size)
        values = column.values
        start = values.offset + column.offset * column.type.list_size
        has_nulls = has_nulls or values.null_count > 0
    dtype = np.dtype(values.type.to_pandas_dtype())
    num_values = int(np.prod(shape))
    buffer = values.buffers()[1]
    if num_values == 0:
        return torch.empty(shape, dtype=_torch_dtype(dtype), device="cpu")
    offset = buffer.address - memory.data_ptr() + start * dtype.itemsize if buffer else -1
    end = offset + num_values * dtype.itemsize
    if has_nulls or not 0 <= offset <= end <= len(memory) or offset % dtype.itemsize:
        raise ValueError(f"column {name!r} has nulls or is compressed")
    return memory[offset:end].view(_torch_dtype(dtype)).reshape(shape)


def _torch_dtype(dtype: "np.dtype[Any]") -> torch.dtype:
    torch_dtype: torch.dtype = getattr(torch, dtype.name)
    return torch_dtype
