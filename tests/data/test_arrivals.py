"""A folder that has got files since a state was taken: they are read after those of the state."""

import itertools
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data import operations
from monolith.errors import FailedPreconditionError
from tests.data.samples import table, users

SIZE = 23  # samples of a file; the last windows and batches of a pass are not full


def add(folder, *numbers, size=SIZE):
    """File i has the users from 100 i on."""
    for i in numbers:
        pq.write_table(table(size, i * 100), folder / f"day-{i:02}.parquet", row_group_size=7)


def known(*numbers, size=SIZE):
    return [i * 100 + j for i in numbers for j in range(size)]


def is_even(block):
    return np.asarray(block["user"]) % 2 == 0


def merged(source):
    flows = source.split("user", {"a": 3, "b": 205}, others="drop")
    return source.merge(flows["a"], flows["b"])


PIPELINES = {
    "plain": lambda s: s.batch(5),
    "windows": lambda s: s.shuffle(40, seed=3).batch(5),
    "files": lambda s: s.shuffle_files(1).interleave(2).shuffle(30).batch(4),
    "epochs": lambda s: s.shuffle_files(1).shuffle(30).repeat(3).batch(7),
    "windows_of_epochs": lambda s: s.repeat(2).shuffle(50).shuffle(9).batch(7),
    "batched_first": lambda s: s.batch(6).shuffle(50).batch(5),
    "filtered": lambda s: s.filter(is_even).shuffle(11).batch(4),
    "cached": lambda s: s.cache().shuffle(20).repeat(2).batch(6),
    "taken": lambda s: s.take(20).batch(3),
    "flow": lambda s: s.split(lambda b: is_even(b), ["odd", "even"])["even"].shuffle(9).batch(4),
    "merged": lambda s: merged(s).shuffle(16).batch(6),
    "negatives": lambda s: s.generate_negatives(
        operations.NegativeGen(1, "user", start_num=0)
    ).batch(6),
    "worker_of_files": lambda s: s.shard(1, 2).shuffle(20).batch(4),
    "worker_of_samples": lambda s: s.shard(2, 5).batch(2),
    "prefetched": lambda s: s.interleave(3).shuffle(30).batch(5).prefetch(2),
    "selected": lambda s: s.shuffle(30).select("user").batch(5),
}


def state_at(source, position):
    """Return the state after some batches, as a checkpoint has it, and the users after them."""
    with iter(source) as batches:
        list(itertools.islice(batches, position))
        state = json.loads(json.dumps(batches.state_dict()))
        return state, users(batches)


@pytest.mark.parametrize("name", PIPELINES)
def test_new_files_come_after_the_rest_of_the_old_ones(tmp_path, name):
    make = PIPELINES[name]
    add(tmp_path, 1, 3)
    old = make(data.parquet(tmp_path))
    num_batches = len(list(old))
    states = [state_at(old, position) for position in range(num_batches + 1)]
    add(tmp_path, 0, 2, 4)
    (tmp_path / "new").mkdir()
    add(tmp_path / "new", 0, 2, 4)
    new = sorted(users(make(data.parquet(tmp_path / "new"))))
    shutil.rmtree(tmp_path / "new")
    grown = make(data.parquet(tmp_path))
    for state, rest in states:
        with grown.resume(state) as batches:
            found = users(batches)
        assert found[: len(rest)] == rest
        if name != "negatives":  # draws differ by arrival
            assert sorted(found[len(rest) :]) == new
        assert len(found) == len(rest) + len(new)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_state_among_new_files_is_exact(tmp_path, name):
    make = PIPELINES[name]
    add(tmp_path, 1, 3)
    state, _ = state_at(make(data.parquet(tmp_path)), 2)
    add(tmp_path, 0, 2, 4)
    grown = make(data.parquet(tmp_path))
    with grown.resume(state) as batches:
        whole = [(users([batch]), json.dumps(batches.state_dict())) for batch in batches]
    for position, (_, after) in enumerate(whole):
        rest = itertools.chain.from_iterable(rows for rows, _ in whole[position + 1 :])
        with grown.resume(json.loads(after)) as batches:
            assert users(batches) == list(rest)


def test_a_folder_may_grow_again_and_again(tmp_path):
    add(tmp_path, 5)
    make, found, state = PIPELINES["windows"], [], None
    for new in ((), (2,), (), (7, 1), (4,)):
        add(tmp_path, *new)
        source = make(data.parquet(tmp_path))
        with iter(source) if state is None else source.resume(state) as batches:
            found += users(itertools.islice(batches, 6))
            state = json.loads(json.dumps(batches.state_dict()))
    with make(data.parquet(tmp_path)).resume(state) as batches:
        found += users(batches)
    assert sorted(found) == known(1, 2, 4, 5, 7)
    assert sorted(found[: 2 * SIZE]) == known(2, 5)


def test_workers_share_new_files_and_keep_their_old_ones(tmp_path):
    add(tmp_path, 1, 3, 5)
    make = [lambda s, i=i: s.shard(i, 2).batch(4) for i in range(2)]
    states = [state_at(one(data.parquet(tmp_path)), 2) for one in make]
    found = known(1, 3, 5)[:0]
    for one in make:
        found += users(itertools.islice(one(data.parquet(tmp_path)), 2))
    add(tmp_path, 0, 2, 4, 6)
    for one, (state, rest) in zip(make, states, strict=True):
        after = users(one(data.parquet(tmp_path)).resume(state))
        assert after[: len(rest)] == rest
        assert len(after) == len(rest) + 2 * SIZE
        found += after
    assert sorted(found) == known(*range(7))


@pytest.mark.parametrize("depth", [0, 2])
def test_a_pipeline_at_its_end_reads_exactly_the_new_files(tmp_path, depth):
    make = lambda s: s.shuffle(30).batch(5).prefetch(depth) if depth else s.shuffle(30).batch(5)  # noqa: E731
    add(tmp_path, 1)
    with iter(make(data.parquet(tmp_path))) as batches:
        assert sorted(users(batches)) == known(1)
        state = batches.state_dict()
    assert users(make(data.parquet(tmp_path)).resume(state)) == []
    add(tmp_path, 0, 2)
    assert sorted(users(make(data.parquet(tmp_path)).resume(state))) == known(0, 2)


ENDLESS = {
    "plain": lambda s: s.repeat().batch(5),
    "windows": lambda s: s.shuffle_files(1).shuffle(30).repeat().batch(5),
    "filtered": lambda s: s.shuffle(30).repeat().filter(lambda b: b["user"].is_valid()).batch(5),
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("position", [*range(7, 12), 23])
def test_a_repetition_without_end_repeats_all_files_after_a_pass(tmp_path, name, position):
    make = ENDLESS[name]
    add(tmp_path, 1, 3)
    with iter(make(data.parquet(tmp_path))) as batches:
        seen = users(itertools.islice(batches, position))
        state = json.loads(json.dumps(batches.state_dict()))
        old = users(itertools.islice(batches, 40))
    add(tmp_path, 2)
    with make(data.parquet(tmp_path)).resume(state) as batches:
        found = users(itertools.islice(batches, 60))
    first_new = next(at for at, user in enumerate(found) if user in known(2))
    ends = [2 * SIZE * n - len(seen) for n in range(4)]  # of passes over the old files
    end = max(end for end in ends if end <= first_new)
    assert found[:end] == old[:end]
    passes = [sorted(found[end:][i * 3 * SIZE :][: 3 * SIZE]) for i in range(2)]
    assert passes == [known(1, 2, 3)] * 2
    assert found[end:][: 3 * SIZE] != found[end:][3 * SIZE : 6 * SIZE] or name == "plain"


def test_files_that_a_pass_without_end_has_read_may_go(tmp_path):
    make = ENDLESS["plain"]
    add(tmp_path, 1, 3)
    with iter(make(data.parquet(tmp_path))) as batches:
        seen = users(itertools.islice(batches, 6))
        state = batches.state_dict()
    (tmp_path / "day-01.parquet").unlink()
    add(tmp_path, 4)
    found = users(itertools.islice(make(data.parquet(tmp_path)).resume(state), 20))
    end = 2 * SIZE - len(seen)
    assert found[:end] == known(1, 3)[len(seen) :]
    assert found[end:][: 2 * SIZE] == known(3, 4)


def test_a_file_that_the_next_pass_may_need_must_be_there(tmp_path):
    make = lambda s: s.repeat().batch(23)  # noqa: E731
    add(tmp_path, 1, 3)
    with iter(make(data.parquet(tmp_path))) as batches:
        list(itertools.islice(batches, 2))
        state = batches.state_dict()
    (tmp_path / "day-01.parquet").unlink()
    with pytest.raises(FailedPreconditionError, match=r"day-01.parquet', which had to be read"):
        make(data.parquet(tmp_path)).resume(state)


def test_new_files_are_named(tmp_path, caplog):
    add(tmp_path, 1, 3)
    state, _ = state_at(data.parquet(tmp_path).batch(5), 9)
    add(tmp_path, *range(4, 10))
    (tmp_path / "day-01.parquet").unlink()
    data.parquet(tmp_path).batch(5).resume(state).close()
    names = ", ".join(f"{tmp_path}/day-{i:02}.parquet" for i in range(4, 9))
    assert caplog.messages == [
        f"[data] 6 new files since the saved position, read after 2 old files: {names}, ...",
        f"[data] 1 file gone since the saved position, which had been read: "
        f"{tmp_path}/day-01.parquet",
    ]


def test_new_files_of_an_endless_stream_are_named(tmp_path, caplog):
    add(tmp_path, 1)
    batches = iter(data.parquet(tmp_path).repeat().batch(5))
    add(tmp_path, 2)
    data.parquet(tmp_path).repeat().batch(5).resume(batches.state_dict()).close()
    batches.close()
    assert caplog.messages == [
        "[data] 1 new file since the saved position, read in the passes after this one over 1 "
        f"old file: {tmp_path}/day-02.parquet"
    ]


def test_equal_files_are_not_worth_a_word(tmp_path, caplog):
    add(tmp_path, 1)
    state, rest = state_at(data.parquet(tmp_path).batch(5), 1)
    assert users(data.parquet(tmp_path).batch(5).resume(state)) == rest
    assert caplog.messages == []


def test_files_that_were_read_may_be_gone(tmp_path):
    add(tmp_path, 1, 2, 3)
    source = data.parquet(tmp_path).shuffle(10).batch(5)
    state, rest = state_at(source, 2 * SIZE // 5)
    (tmp_path / "day-01.parquet").unlink()
    assert users(data.parquet(tmp_path).shuffle(10).batch(5).resume(state)) == rest


@pytest.mark.parametrize(
    ("make", "position"),
    [
        (lambda s: s.batch(5), 2),  # in the middle of the file
        (lambda s: s.shuffle(60).batch(5), 8),  # the window is read again
        (lambda s: s.repeat(2).batch(5), 8),  # the next pass reads the file again
        (lambda s: s.cache().batch(5), 8),  # the cache is filled again
        (lambda s: s.merge(s).batch(5), 3),
        (lambda s: s.shard(0, 9).batch(1), 1),
        (lambda s: s.shuffle_files(0).interleave(2).batch(5), 3),
    ],
)
def test_a_file_that_is_still_needed_must_be_there(tmp_path, make, position):
    add(tmp_path, 1, 2, 3)
    state, _ = state_at(make(data.parquet(tmp_path)), position)
    (tmp_path / "day-01.parquet").unlink()
    text = (
        r"^\[Pipeline.resume\] expected file '.*day-01.parquet', which had to be read after the "
        r"state was taken, got none; put it back, or read all files from their beginning with "
        r"iter\(pipeline\), which the source of a task may return$"
    )
    with pytest.raises(FailedPreconditionError, match=text):
        make(data.parquet(tmp_path)).resume(state)


@pytest.mark.parametrize("number", [1, 3])
def test_a_file_of_another_size_is_refused(tmp_path, number):
    add(tmp_path, 1, 3)
    state, _ = state_at(data.parquet(tmp_path).batch(5), 6)
    before = (tmp_path / f"day-{number:02}.parquet").stat().st_size
    add(tmp_path, number, size=50)
    text = (
        rf"expected file '.*day-{number:02}.parquet' of {before} bytes, as when the state was "
        r"taken, got \d+; put the file of then back, or read all files from their beginning"
    )
    with pytest.raises(FailedPreconditionError, match=text):
        data.parquet(tmp_path).batch(5).resume(state)


def test_a_folder_that_was_moved_is_not_taken_for_new_files(tmp_path):
    (tmp_path / "a").mkdir()
    add(tmp_path / "a", 1, 3)
    state, _ = state_at(data.parquet(tmp_path / "a").batch(5), 10)
    (tmp_path / "a").rename(tmp_path / "b")
    add(tmp_path / "b", 4)
    text = (
        r"expected the files of the state, such as '.*/a/day-01.parquet', got files of the same "
        r"names and sizes at another place, such as '.*/b/day-01.parquet'; give the path of then"
    )
    with pytest.raises(FailedPreconditionError, match=text):
        data.parquet(tmp_path / "b").batch(5).resume(state)


def test_new_files_alone_are_read_once_the_others_were(tmp_path):
    add(tmp_path, 1, 3)
    state, rest = state_at(data.parquet(tmp_path).batch(5), 10)
    add(tmp_path, 4)
    assert rest == []
    assert users(data.parquet(tmp_path / "*4.parquet").batch(5).resume(state)) == known(4)


def test_files_that_are_listed_twice_are_told_apart(tmp_path):
    add(tmp_path, 1)
    path = tmp_path / "day-01.parquet"
    state, rest = state_at(data.parquet([path, path]).batch(5), 6)
    assert users(data.parquet([path] * 3).batch(5).resume(state)) == rest + known(1)


def test_files_of_several_systems_stay_where_they_are(tmp_path):
    import fsspec

    add(tmp_path, 1)
    memory = fsspec.filesystem("memory")
    memory.pipe("/arrivals/a.parquet", (tmp_path / "day-01.parquet").read_bytes())
    paths = [tmp_path / "day-01.parquet", "memory://arrivals"]
    state, rest = state_at(data.parquet(paths).batch(5), 2)
    memory.pipe("/arrivals/b.parquet", (tmp_path / "day-01.parquet").read_bytes())
    assert users(data.parquet(paths).batch(5).resume(state)) == rest + known(1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda s: s.repeat().shuffle(9).batch(5),
         r"got 1 new \(.*day-02.parquet\): Shuffle, after repeat\(\) without end, goes over"),
        (lambda s: s.repeat().merge(s).batch(5), r"Merge, after repeat\(\) without end"),
        (lambda s: s.merge(data.arrow_table(table(5))).batch(5),
         r"got 1 new \(.*\): the source 'table: 5 samples' next to them would be read again; give "
         "the files of then and no others, for example by a glob"),
    ],
)  # fmt: skip
def test_new_files_that_would_spoil_a_position_are_refused(tmp_path, make, text):
    add(tmp_path, 1)
    state, _ = state_at(make(data.parquet(tmp_path)).take(20).batch(5), 2)
    add(tmp_path, 2)
    with pytest.raises(FailedPreconditionError, match=text):
        make(data.parquet(tmp_path)).take(20).batch(5).resume(state)
    rest = make(data.parquet(tmp_path / "day-01*")).take(20).batch(5).resume(state)
    assert len(users(rest)) == 10


def test_files_gone_before_a_window_over_passes_are_refused(tmp_path):
    make = lambda s: s.repeat().shuffle(9).take(60).batch(5)  # noqa: E731
    add(tmp_path, 1, 2)
    state, _ = state_at(make(data.parquet(tmp_path)), 7)
    (tmp_path / "day-01.parquet").unlink()
    with pytest.raises(FailedPreconditionError, match=r"day-01.parquet"):
        make(data.parquet(tmp_path)).resume(state)


def test_another_stage_is_still_refused(tmp_path):
    add(tmp_path, 1)
    state, _ = state_at(data.parquet(tmp_path).batch(5), 2)
    add(tmp_path, 2)
    with pytest.raises(FailedPreconditionError, match=r"'blocks of 4'\), got one of another"):
        data.parquet(tmp_path).batch(4).resume(state)


@pytest.mark.parametrize("change", ["grown", "other_sources"])
def test_a_state_without_names_fits_the_same_files_only(tmp_path, change):
    add(tmp_path, 1)
    state, rest = state_at(data.parquet(tmp_path).batch(5), 2)
    if change == "grown":
        del state["files"]  # as an older version wrote it
    else:
        state["files"]["sources"] *= 2
    assert users(data.parquet(tmp_path).batch(5).resume(state)) == rest
    add(tmp_path, 2)
    with pytest.raises(FailedPreconditionError, match=r"1 files .*make stages and files as they"):
        data.parquet(tmp_path).batch(5).resume(state)


def test_progress_counts_the_files_of_all_arrivals(tmp_path):
    add(tmp_path, 1, 3)
    state, _ = state_at(data.parquet(tmp_path).repeat(2).batch(5), 3)
    add(tmp_path, 2)
    sizes = [(tmp_path / f"day-0{i}.parquet").stat().st_size for i in (1, 2, 3)]
    with data.parquet(tmp_path).repeat(2).batch(5).resume(state) as batches:
        shares = [batches.progress for _ in batches]
    assert shares[0][0] < shares[-1][0]
    assert [done for done, _ in shares] == sorted(done for done, _ in shares)
    assert shares[-1] == (2 * sum(sizes), 2 * sum(sizes)) == (shares[-1][0], shares[0][1])


def test_a_failure_among_new_files_is_tried_again(tmp_path):
    add(tmp_path, 1)
    state, rest = state_at(data.parquet(tmp_path).batch(5), 2)
    add(tmp_path, 2)
    new = tmp_path / "day-02.parquet"
    source = data.parquet(tmp_path).batch(5)
    new.rename(tmp_path / "away")
    with source.resume(state) as batches:
        found = users(itertools.islice(batches, len(rest) // 5 + 1))
        with pytest.raises(FileNotFoundError, match="day-02"):
            next(batches)
        (tmp_path / "away").rename(new)
        assert found + users(batches) == rest + known(2)


def test_a_state_names_a_shared_folder_once(tmp_path):
    add(tmp_path, *range(1, 90))
    text = json.dumps(iter(data.parquet(tmp_path).batch(5)).state_dict())
    assert len(text) < 90 * 40
    assert text.count(str(tmp_path)) == 1
