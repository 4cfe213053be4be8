import json
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data import Columns, FileQueue
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from tests.data.samples import table

COLUMNS = Columns(["user", "items"], ["price"], ["label"])


def touch(folder, *names):
    for name in names:
        (folder / name).write_text("")


def names_of(queue):
    return [name.rsplit("/", 1)[-1] for name in queue]


def test_names_come_in_the_order_of_patterns_and_matches(tmp_path):
    touch(tmp_path, *(f"{letter}_{i}" for letter in "abcde" for i in (1, 0)))
    queue = FileQueue([f"{tmp_path}/{letter}_*" for letter in "abcde"])
    assert names_of(queue) == [f"{letter}_{i}" for letter in "abcde" for i in (0, 1)]
    assert names_of(queue) == []


def test_patterns_without_files_are_passed_over(tmp_path):
    touch(tmp_path, "b")
    assert names_of(FileQueue([f"{tmp_path}/a*", f"{tmp_path}/b*", f"{tmp_path}/c"])) == ["b"]
    assert names_of(FileQueue([])) == []


def test_a_restored_queue_hands_out_again_what_came_after(tmp_path):
    touch(tmp_path, "a.0.0", "a.0.1")
    queue = FileQueue([f"{tmp_path}/a.*"])
    assert next(queue).endswith("a.0.0")
    state = json.loads(json.dumps(queue.state_dict()))
    assert next(queue).endswith("a.0.1")
    queue.load_state_dict(state)
    assert next(queue).endswith("a.0.1")


def test_too_many_files_are_refused(tmp_path):
    touch(tmp_path, "a", "b", "c")
    with pytest.raises(InvalidArgumentError, match="expected at most 2 elements, got 3"):
        next(FileQueue([str(tmp_path)], capacity=2))


def write(folder, num_files=6, num_samples=40):
    for i in range(num_files):
        rows = table(num_samples, i * num_samples)
        pq.write_table(rows, folder / f"part-{i}.parquet", row_group_size=15)
    return [f"{folder}/part-{i}.*" for i in range(num_files)]


def source(queue, worker):
    return data.parquet(queue.reader(worker), columns=COLUMNS).batch(7)


def users(batches):
    return [row[0] for batch in batches for row in batch.features["user"].to_lists()]


def test_one_worker_reads_all_files(tmp_path):
    queue = FileQueue(write(tmp_path))
    pipeline = source(queue, "a")
    assert users(pipeline) == list(range(240))
    assert users(pipeline) == list(range(240))  # its own files again
    assert users(source(queue, "b")) == []


@pytest.mark.parametrize("depth", [0, 2])
def test_each_file_goes_to_one_of_several_workers(tmp_path, depth):
    queue, found = FileQueue(write(tmp_path, 24)), {}
    begin = threading.Barrier(4)

    def work(worker):
        pipeline = source(queue, worker)
        begin.wait()
        batches = iter(pipeline.prefetch(depth) if depth else pipeline)
        found[worker] = users(batches)
        batches.close()

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(user for each in found.values() for user in each) == list(range(960))


def test_workers_and_queue_resume_together(tmp_path):
    patterns = write(tmp_path, 8)
    random = np.random.default_rng(0)
    for _ in range(8):
        queue = FileQueue(patterns)
        workers = {name: iter(source(queue, name).prefetch(2)) for name in "ab"}
        read = []
        for name in random.choice(list("ab"), random.integers(0, 30)):
            read += users([next(workers[name])]) if len(read) < 250 else []
        states = {name: batches.state_dict() for name, batches in workers.items()}
        states = json.loads(json.dumps({**states, "queue": queue.state_dict()}))
        for batches in workers.values():
            batches.close()
        restored = FileQueue(patterns)
        restored.load_state_dict(states["queue"])
        for name in "ba":
            read += users(source(restored, name).resume(states[name]))
        assert sorted(read) == list(range(320))


def test_a_shuffle_that_read_ahead_loses_no_file(tmp_path):
    patterns = write(tmp_path, 4)

    def pipeline(queue):
        return data.parquet(queue.reader("a"), columns=COLUMNS).shuffle(90).batch(10)

    queue = FileQueue(patterns)
    batches = iter(pipeline(queue))
    read = users([next(batches)])
    states = batches.state_dict(), queue.state_dict()
    restored = FileQueue(patterns)
    restored.load_state_dict(states[1])
    read += users(pipeline(restored).resume(states[0]))
    assert sorted(read) == list(range(160))


def test_a_queue_that_was_saved_before_its_workers_is_refused(tmp_path):
    patterns = write(tmp_path)
    queue = FileQueue(patterns)
    before = queue.state_dict()
    batches = iter(source(queue, "a"))
    for _ in range(8):
        next(batches)
    queue.load_state_dict(before)
    text = r"expected that worker 'a' got 1 files, got 0; save the state of the queue after"
    with pytest.raises(FailedPreconditionError, match=text):
        source(queue, "a").resume(batches.state_dict())


def test_a_file_that_changed_or_went_is_refused(tmp_path):
    queue = FileQueue(write(tmp_path, 1))
    batches = iter(source(queue, "a"))
    for _ in range(3):  # past the first row group
        next(batches)
    state = batches.state_dict()
    pq.write_table(table(90), tmp_path / "part-0.parquet")
    with pytest.raises(FailedPreconditionError, match=r"part-0.parquet' of \d+ bytes, as before"):
        source(queue, "a").resume(state)
    (tmp_path / "part-0.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"expected file .*part-0.parquet'; it is gone"):
        source(queue, "a").resume(state)


def test_progress_counts_the_bytes_of_a_worker(tmp_path):
    queue = FileQueue(write(tmp_path, 2))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    batches = iter(source(queue, "a"))
    assert batches.progress == (0, 0)
    users(batches)
    assert batches.progress == (size, 0)


def test_a_queue_has_one_epoch(tmp_path):
    with pytest.raises(ValueError, match="expected one epoch of a queue of files"):
        users(source(FileQueue(write(tmp_path, 1)), "a").repeat(2))


def test_a_queue_needs_columns(tmp_path):
    with pytest.raises(ValueError, match=r"\[data\] expected columns for the files of a queue"):
        data.parquet(FileQueue([]).reader("a"))


def test_files_of_other_stores_keep_their_store():
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/queued/a.csv", b"user,label\n7,1\n")
    try:
        queue = FileQueue(["memory://queued/*.csv"])
        columns = Columns(["user"], [], ["label"])
        assert users(data.csv(queue.reader("a"), columns=columns).batch(4)) == [7]
    finally:
        memory.rm("/queued", recursive=True)
