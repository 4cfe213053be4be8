"""Files first, and then a stream: its positions, and what a resumed run goes on with."""

import json

import pytest

from monolith import data
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.train import TaskSettings
from monolith.train.online.online_source import OnlineSource, open_stream
from tests.train.tasks import Clicks

COLUMNS = data.Columns(["user", "item"], ["hour"], labels=["click"])


def write(folder, name, *users):
    folder.mkdir(exist_ok=True)
    lines = [{"user": user, "item": user % 10, "hour": 0.5, "click": user % 2} for user in users]
    with open(folder / name, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def folders(tmp_path):
    """Folders of files, users 0 to 5, and of a stream, users 100 to 103."""
    files, stream = tmp_path / "files", tmp_path / "stream"
    write(files, "a.jsonl", *range(6))
    write(stream, "a.jsonl", *range(100, 104))
    return files, stream


def source_of(folders, *, has_files=True, size=2):
    files, stream = folders
    opened = data.jsonl(f"tail:{stream}", columns=COLUMNS).batch(size)
    return OnlineSource(
        opened, data.jsonl(files, columns=COLUMNS).batch(size) if has_files else None
    )


def users_of(batches, number):
    return [next(batches).features["user"].values.tolist() for _ in range(number)]


FILES, STREAM = [[0, 1], [2, 3], [4, 5]], [[100, 101], [102, 103]]


def test_the_stream_follows_the_files(folders):
    batches = iter(source_of(folders))
    assert users_of(batches, 3) == FILES
    assert batches.part == "files"
    assert users_of(batches, 2) == STREAM
    assert batches.part == "stream"
    batches.close()


@pytest.mark.parametrize("number", range(5))
def test_a_resumed_run_goes_on_where_it_was(folders, number):
    source = source_of(folders)
    batches = iter(source)
    users_of(batches, number)
    state = json.loads(json.dumps(batches.state_dict()))
    batches.close()
    resumed = source.resume(state)
    assert users_of(resumed, 5 - number) == [*FILES, *STREAM][number:]
    resumed.close()


def test_without_files_the_stream_is_all(folders):
    batches = iter(source_of(folders, has_files=False))
    assert users_of(batches, 2) == STREAM
    batches.close()


def test_a_state_of_a_run_over_the_files_alone_continues_them(folders):
    source = source_of(folders)
    with iter(source.files) as files:
        users_of(files, 1)
        state = files.state_dict()
    batches = source.resume(state)
    assert users_of(batches, 3) == [*FILES[1:], STREAM[0]]
    batches.close()


def test_a_state_in_files_begins_the_stream_if_there_are_no_files_any_more(folders, caplog):
    with iter(source_of(folders).files) as files:
        users_of(files, 1)
        state = files.state_dict()
    batches = source_of(folders, has_files=False).resume(state)
    assert users_of(batches, 1) == STREAM[:1]
    assert "the stream begins at its start" in caplog.text
    batches.close()


def test_files_of_an_unfinished_backfill_are_needed_again(folders):
    batches = iter(source_of(folders))
    users_of(batches, 1)
    state = batches.state_dict()
    batches.close()
    with pytest.raises(FailedPreconditionError, match="give them again: --backfill FILES"):
        source_of(folders, has_files=False).resume(state)


class OfFiles(Clicks):
    """Reads JSON lines of its settings."""

    def __init__(self, **data):
        super().__init__()
        self.settings = TaskSettings(data)

    def source(self, mode):
        return data.jsonl(self.settings.data[mode], columns=COLUMNS).batch(2)


def test_a_task_reads_a_stream_as_it_reads_files(folders):
    files, stream = folders
    source = open_stream(OfFiles(), f"tail:{stream}", str(files))
    batches = iter(source)
    assert users_of(batches, 5) == [*FILES, *STREAM]
    batches.close()


def test_batches_of_the_stream_end_by_time(folders):
    stream = folders[1]
    write(stream, "a.jsonl", 104)
    source = open_stream(OfFiles(), f"tail:{stream}", seconds=0.05)
    batches = iter(source)
    assert users_of(batches, 3) == [*STREAM, [104]]
    batches.close()


def test_a_time_that_the_task_has_set_stays(folders):
    class Timed(OfFiles):
        def source(self, mode):
            path = self.settings.data[mode]
            return data.jsonl(path, columns=COLUMNS).batch(2, seconds=7.0)

    stream = open_stream(Timed(), f"tail:{folders[1]}", seconds=0.05).stream
    assert stream.stage.seconds == 7.0


def test_a_task_that_does_not_read_its_settings_is_refused(folders):
    with pytest.raises(InvalidArgumentError, match=r"pipeline that reads 'tail:.*got a list"):
        open_stream(Clicks(), f"tail:{folders[1]}")


def test_a_task_that_reads_files_anyway_is_refused(folders):
    class Stubborn(OfFiles):
        def source(self, mode):
            return data.jsonl(folders[0], columns=COLUMNS).batch(2)

    with pytest.raises(InvalidArgumentError, match="got jsonl"):
        open_stream(Stubborn(), f"tail:{folders[1]}")
