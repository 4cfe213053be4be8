import pyarrow as pa
import torch

from monolith.table.disk.arrow import (
    columns_of_batch,
    make_batch,
    row_schema,
    rows_of_batch,
    tensors_of_rows,
)
from tests.table.disk.cases import CONFIG, filled


def test_a_slice_of_a_batch_has_the_rows_of_the_slice():
    (rows,) = filled(10).export()
    batch = make_batch(row_schema(CONFIG), tensors_of_rows(rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    memory = torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)
    (read,) = pa.ipc.open_stream(pa.py_buffer(memory.numpy()))
    part = rows_of_batch(read.slice(3, 4), memory, CONFIG)
    assert part.keys.tolist() == rows.keys[3:7].tolist()
    assert part.times.tolist() == rows.times[3:7].tolist()
    for name, column in rows.columns.items():
        assert torch.equal(part.columns[name], column[3:7])


def test_lists_over_sliced_items_have_these_items():
    memory = torch.arange(6.0).view(torch.uint8)
    items = pa.Array.from_buffers(pa.float32(), 6, [None, pa.py_buffer(memory.numpy())])
    lists = pa.FixedSizeListArray.from_arrays(items.slice(2), 2)
    columns = columns_of_batch(pa.record_batch({"x": lists}), memory)
    assert columns["x"].tolist() == [[2.0, 3.0], [4.0, 5.0]]
