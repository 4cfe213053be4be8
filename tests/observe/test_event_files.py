"""Bytes of event files, read by TensorBoard's classes of google.protobuf and its record reader."""

import contextlib
import math
import os
import pathlib
import socket
import threading
import time

import fsspec
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, SummaryMetadata
from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
from tensorboard.util.tensor_util import make_ndarray

from monolith.observe import TensorSummary, store_log
from monolith.observe.event_files import EventFile, summary_metadata

pytestmark = pytest.mark.req("G-T5")


@pytest.fixture
def file(tmp_path):
    file = EventFile(tmp_path / "run")
    yield file
    file.close()


def records(path):
    """The records of a file, as TensorBoard reads them; checksums are verified."""
    reader = PyRecordReader_New(path)
    with contextlib.suppress(OutOfRangeError):  # the end of the file
        while True:
            reader.GetNext()
            yield reader.record()


def events(file):
    file.flush()
    return [Event.FromString(record) for record in records(file.path)]


def tensor_of(value):
    return make_ndarray(value.tensor)


def test_a_name_has_time_host_process_and_number(tmp_path):
    before = int(time.time())
    names = []
    for _ in range(2):
        file = EventFile(tmp_path)
        file.close()
        names.append(os.path.basename(file.path))
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    prefix, rest = names[0][:20], names[0][20:]
    assert prefix == "events.out.tfevents."
    seconds, process, number = rest.replace(f".{socket.gethostname()}.", ".").split(".")
    assert len(seconds) == 10
    assert before <= int(seconds) <= time.time()
    assert (int(process), number) == (os.getpid(), "0")


def test_two_files_of_one_second_have_two_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1e9)
    files = [EventFile(tmp_path) for _ in range(2)]
    for file in files:
        file.close()
    assert [file.path.rpartition(".")[2] for file in files] == ["0", "1"]
    assert files[0].path[:-1] == files[1].path[:-1]


def test_the_first_event_is_the_version_and_the_first_step_begins_a_session(file):
    file.add_scalars({"loss": 1.0}, 7)
    file.add_scalars({"loss": 1.0}, 8)
    version, start, *rest = events(file)
    assert version.file_version == "brain.Event:2"
    assert (start.session_log.status, start.step) == (SessionLog.START, 7)
    assert [(event.step, event.WhichOneof("what")) for event in rest] == [
        (7, "summary"),
        (8, "summary"),
    ]


def test_a_run_that_goes_back_drops_its_later_steps(file):
    for step in (7, 8, 9):
        file.add_scalars({"loss": 1.0}, step)
    file.restart(9)  # nothing is later
    file.restart(7)
    begins = [event.step for event in events(file) if event.HasField("session_log")]
    assert begins == [7, 8]


def test_a_new_file_drops_the_steps_that_its_run_does_anew(file):
    file.restart(391)  # before the first event
    file.add_scalars({"loss": 1.0}, 400)
    begins = [event.step for event in events(file) if event.HasField("session_log")]
    assert begins == [392]


@pytest.mark.parametrize("value", [0.5, 0.0, -1e30, math.inf, math.nan])
def test_scalars_of_a_step_are_one_event(file, value):
    before = time.time()
    file.add_scalars({"loss": value, "rows/table=ü": 3}, 1 << 40)
    event = events(file)[-1]
    assert before <= event.wall_time <= time.time()
    assert event.step == 1 << 40
    assert [value.tag for value in event.summary.value] == ["loss", "rows/table=ü"]
    assert event.summary.value[0].simple_value == pytest.approx(value, nan_ok=True)


def test_a_number_beyond_float32_is_infinite(file):
    file.add_scalars({"loss": 1e300}, 1)
    assert events(file)[-1].summary.value[0].simple_value == math.inf


@pytest.mark.parametrize("shape", [(), (0,), (3, 7), (2, 0, 3)])
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.float64, torch.float16, torch.int8, torch.int16, torch.int32),
        *(torch.int64, torch.uint8, torch.bool),
    ],
)
def test_tensors_come_back_as_they_were(file, dtype, shape):
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    file.add_tensor(TensorSummary("weights", tensor, b""), 3)
    array = tensor_of(events(file)[-1].summary.value[0])
    assert (array.shape, array.dtype) == (shape, tensor.numpy().dtype)
    assert (array == tensor.numpy()).all()


def test_a_tensor_may_have_a_graph_and_any_layout(file):
    tensor = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    file.add_tensor(TensorSummary("weights", tensor, b""), 3)
    assert tensor_of(events(file)[-1].summary.value[0]).tolist() == tensor.tolist()


def test_bfloat16_becomes_float32(file):
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    file.add_tensor(TensorSummary("weights", tensor, b""), 3)
    array = tensor_of(events(file)[-1].summary.value[0])
    assert (array.dtype, array.tolist()) == ("float32", [1.5, -2.0])


def test_a_dtype_that_event_files_do_not_have_is_an_error(file):
    summary = TensorSummary("weights", torch.zeros(1, dtype=torch.complex64), b"")
    with pytest.raises(ValueError, match=r"or bfloat16, got torch\.complex64 \(tag 'weights'\)"):
        file.add_tensor(summary, 1)


def test_metadata_has_plugin_content_description_and_class(file):
    metadata = summary_metadata("monolith", b"{}", description="what it is")
    file.add_tensor(TensorSummary("weights", torch.ones(1), metadata), 3)
    read = events(file)[-1].summary.value[0].metadata
    assert read == SummaryMetadata(
        plugin_data=SummaryMetadata.PluginData(plugin_name="monolith", content=b"{}"),
        summary_description="what it is",
        data_class=DATA_CLASS_TENSOR,
    )
    assert read.SerializeToString() == metadata


def test_a_text_is_a_tensor_of_the_text_plugin_at_its_time(file):
    file.add_text("save", "path: ä", 3, seconds=12.5)
    event = events(file)[-1]
    (value,) = event.summary.value
    assert (event.wall_time, event.step, value.tag) == (12.5, 3, "save")
    assert value.metadata.plugin_data.plugin_name == "text"
    assert tensor_of(value).item() == "path: ä".encode()


def test_a_golden_event(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1e9)
    file = EventFile(tmp_path)
    file.close()
    assert pathlib.Path(file.path).read_bytes().hex() == (
        "1800000000000000a37f4b22090000000065cdcd411a0d627261696e2e4576656e743a32f4eb195e"
    )


def test_a_changed_byte_is_noticed_by_the_reader(file):
    file.add_scalars({"loss": 1.0}, 1)
    file.close()
    path = pathlib.Path(file.path)
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataLossError):
        list(records(file.path))


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError, match=r"expected a folder that can be written, got .*file/run \("
    ):
        EventFile(tmp_path / "file" / "run")


def test_a_closed_file_takes_no_more(file):
    file.close()
    file.close()
    with pytest.raises(ValueError, match=r"expected an open file, got .*, a closed one"):
        file.add_scalars({"loss": 1.0}, 1)


def test_events_of_several_threads_are_whole(file):
    def work(number):
        for step in range(100):
            file.add_scalars({f"tag{number}": step}, step)
            file.flush()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events(file)) == 402


@pytest.fixture
def folder(tmp_path):
    return f"memory://events-{tmp_path.name}"


def stored(folder):
    """The names of the files of a store in their order, and a local copy of all."""
    system = fsspec.filesystem("memory")
    return {path.rpartition("/")[2]: system.cat_file(path) for path in sorted(system.find(folder))}


def read_copy(tmp_path, folder):
    """The scalars that TensorBoard reads from the files of a store."""
    for name, data in stored(folder).items():
        (tmp_path / name).write_bytes(data)
    accumulator = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("loss")]


def write_steps(folder, steps):
    file = EventFile(folder)
    for step in steps:
        file.add_scalars({"loss": step}, step)
        file.flush()
    file.close()


def test_a_store_has_the_bytes_of_a_local_file(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    for place in (folder, tmp_path / "local"):
        write_steps(place, range(3))
    (local,) = (tmp_path / "local").iterdir()
    assert stored(folder) == {f"{local.name}0000": local.read_bytes()}


def test_tensorboard_reads_all_files_of_a_long_run_in_a_store(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(store_log, "_FILE_BYTES", 200)
    write_steps(folder, range(50))
    assert len(stored(folder)) > 5
    assert read_copy(tmp_path, folder) == [(step, step) for step in range(50)]


def test_two_runs_of_a_second_have_files_in_their_order(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    write_steps(folder, [1, 2, 3])
    write_steps(folder, [2])
    assert read_copy(tmp_path, folder) == [(1, 1), (2, 2)]


def test_a_file_in_a_store_has_the_path_of_its_newest_part(folder, monkeypatch):
    monkeypatch.setattr(store_log, "_FILE_BYTES", 1)
    with contextlib.closing(EventFile(folder)) as file:
        assert file.path.startswith(f"{folder}/events.out.tfevents.")
        assert file.path.endswith(".00000")
        file.flush()
        assert file.path.endswith(".00001")
