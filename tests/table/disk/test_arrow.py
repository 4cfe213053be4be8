import pyarrow as pa
import torch

from monolith.table.disk.arrow import make_batch, row_schema, rows_of_batch, tensors_of_rows
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
