import json
import re

import pytest

from monolith.errors import UnavailableError
from monolith.native_training.metric.metric_hook import (
    FileMetricHook,
    RecordDump,
    ThroughputMetricHook,
    folder_of_record,
    line_of_record,
)
from monolith.observe.metrics import MemorySink
from monolith.train.driver import Coordinator, Run, drive

RECORD = {"model_name": "m", "req_time": 20220927, "uid": 1, "predict": {"a": 0.5}, "label": {}}
TEXT = json.dumps(RECORD)


def parts(folder):
    """Return the numbers of lines of the files by path below the folder."""
    return {
        str(path.relative_to(folder)): len(path.read_text().splitlines())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write(hook, *messages):
    for message in messages:
        hook(message)
    hook.close()


def test_a_line_is_that_of_the_reference_system():
    record = {
        "req_time": 20220927,
        "gid": "gid",
        "uid": 1854,
        "predict": {"feed_comment": 0.5},
        "label": {"feed_comment": 0},
    }
    line = '20220927;gid;1854;{"feed_comment": 0.5};{"feed_comment": 0}'
    assert line_of_record(record) == line


@pytest.mark.parametrize("time", [20220927, "20220927", 1664236800, 1664323199])
def test_folders_are_those_of_days(time):
    folder = folder_of_record({"model_name": "m", "req_time": time}, 3, "out")
    assert folder == "out/m/20220927/worker_3"


def test_a_file_ends_after_its_number_of_lines(tmp_path):
    write(FileMetricHook(str(tmp_path), 0, partition_size=2), *[TEXT] * 5)
    folder = "m/20220927/worker_0/part_"
    assert parts(tmp_path) == {f"{folder}{n:06d}.txt": k for n, k in enumerate((2, 2, 1))}


def test_a_later_run_begins_a_new_file(tmp_path):
    for ending in ("txt", "csv"):
        write(FileMetricHook(str(tmp_path), 0, file_ext=ending), TEXT)
    names = [path.rpartition("/")[2] for path in parts(tmp_path)]
    assert names == ["part_000000.txt", "part_000001.csv"]


def test_lines_are_flushed_in_batches(tmp_path):
    hook, seen = FileMetricHook(str(tmp_path), 0, batch_size=2), []
    for _ in range(3):
        hook(TEXT)
        seen += parts(tmp_path).values()
    hook.close()
    assert seen == [0, 2, 2]


def test_files_without_a_line_for_a_day_are_closed(tmp_path):
    now = [0.0]
    hook = FileMetricHook(str(tmp_path), 0, clock=lambda: now[0])
    later = json.dumps({**RECORD, "req_time": 20220928})
    hook(TEXT)
    now[0] = 24 * 3600.0
    hook(later)
    assert parts(tmp_path)["m/20220927/worker_0/part_000000.txt"] == 1  # closed, so it is flushed
    assert parts(tmp_path)["m/20220928/worker_0/part_000000.txt"] == 0
    write(hook, TEXT)
    assert "m/20220927/worker_0/part_000001.txt" in parts(tmp_path)


def test_functions_replace_parser_folder_and_line(tmp_path):
    hook = FileMetricHook(
        str(tmp_path),
        5,
        parse_fn=str.upper,
        key_fn=lambda record, worker, base: f"{base}/{record}_{worker}",
        layout_fn=lambda record: record * 2,
    )
    write(hook, "ab")
    assert (tmp_path / "AB_5/part_000000.txt").read_text() == "ABAB\n"


def test_files_are_closed_when_a_run_fails(tmp_path):
    hook, dump = FileMetricHook(str(tmp_path / "x"), 0), RecordDump(str(tmp_path / "dump"))

    def step():
        hook(TEXT)
        dump(TEXT)
        raise KeyError("step")

    with pytest.raises(KeyError):
        drive(step, [hook, dump])
    assert parts(tmp_path / "x") == {"m/20220927/worker_0/part_000000.txt": 1}
    assert len((tmp_path / "dump").read_bytes()) == 8 + 4 + len(TEXT) + 4


def test_a_dump_is_appended_to(tmp_path):
    dump, size = RecordDump(str(tmp_path / "deep" / "dump")), 8 + 4 + len(TEXT) + 4
    for _ in range(2):
        numbers = iter(range(1024))
        drive(lambda numbers=numbers: (next(numbers), dump(TEXT)), [dump])
    assert (tmp_path / "deep" / "dump").stat().st_size == 2048 * size


@pytest.mark.parametrize("hook", [FileMetricHook, RecordDump])
def test_a_place_that_cannot_be_written_ends_the_run_at_its_start(hook, tmp_path):
    (tmp_path / "file").write_text("")
    steps = []
    with pytest.raises(UnavailableError, match=rf"^\[{hook.__name__}\] expected a f.*, got .*file"):
        drive(lambda: steps.append(1), [hook(str(tmp_path / "file" / "below"))])
    assert steps == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"base_name": ""}, "expected a folder as base_name, got ''; set params.metrics.file_base"),
        ({"base_name": "x", "batch_size": 0}, "expected batch_size and partition_size >= 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        FileMetricHook(**arguments)


def test_steps_are_counted_every_few_seconds_and_at_the_end():
    sink, now, run = MemorySink(), [100.0], Run(global_step=0)

    def step():
        if run.global_step == 5:
            raise StopIteration
        now[0] += 20
        run.global_step += 1

    tags = {"model_name": "m", "cluster_type": "stable"}
    hook = ThroughputMetricHook("m", 90.0, sink=sink, clock=lambda: now[0])
    drive(step, [hook], run=run)
    assert sink.total("monolith.training.run_steps.all", tags) == 5
    times = sink.summary("monolith.training.run_steps_elapsed_time.all", tags)
    assert (times.num_times, times.minimum, times.maximum) == (3, 20e6, 40e6)
    assert sink.summary("monolith.training.run_start_elapsed_time.all", tags).mean == 10e6


def test_a_recovery_goes_on_with_the_file_and_is_no_start(tmp_path):
    sink, dump = MemorySink(), RecordDump(str(tmp_path / "dump"))
    hook = ThroughputMetricHook("m", 90.0, sink=sink, clock=lambda: 100.0)
    with Coordinator() as coordinator:
        for message in ("first", "second"):
            for part in (dump, hook):
                part.after_create_session(Run(global_step=0), coordinator)
            dump(message)
    content = (tmp_path / "dump").read_bytes()
    assert 0 < content.index(b"first") < content.index(b"second")
    tags = {"model_name": "m", "cluster_type": "stable"}
    assert sink.summary("monolith.training.run_start_elapsed_time.all", tags).num_times == 1
