"""What shares refuse, and what the errors say."""

import re

import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.errors import FailedPreconditionError
from tests.data.samples import memory, table, write_parquet


def files(folder, workers=2):
    source = data.parquet(write_parquet(folder, 2, row_group_size=5)).batch(4)
    return data.split_source(source, workers)


def test_there_is_a_worker():
    with pytest.raises(ValueError, match="expected at least 1 worker, got 0"):
        data.split_source(memory(), 0)


def test_several_workers_need_a_source_that_can_be_iterated_again():
    with pytest.raises(TypeError, match="such as a Pipeline or a list, got Batches"):
        data.split_source(iter(memory().batch(2)), 2)


@pytest.mark.parametrize(
    "name", ["", "7", "{}", '{"file":"a"}', '{"whole": true}', '{"file":"a","size":1,"rows":[1]}']
)
def test_a_text_that_is_no_name_is_refused(name):
    shares = data.split_source(memory().batch(2), 2)
    with pytest.raises(ValueError, match=re.escape(f"got {name!r}; take it from Shares.names()")):
        shares.open(name)


def test_a_file_that_is_gone_is_refused(tmp_path):
    shares = files(tmp_path)
    name = shares.names()[0]
    (tmp_path / "part-0.parquet").unlink()
    text = r"\[Shares.open\] expected file '.*part-0.parquet', as when .*, got none; put it back"
    with pytest.raises(FailedPreconditionError, match=text):
        shares.open(name)


def test_a_file_that_another_source_does_not_list_is_refused(tmp_path):
    name = files(tmp_path).names()[0]
    (tmp_path / "part-0.parquet").unlink()
    others = data.parquet(tmp_path).batch(4), memory().batch(4), list(memory().batch(4))
    text = "part-0.parquet' among the files of the source, as when .*, got none; put it back"
    for source in others:
        with pytest.raises(FailedPreconditionError, match=text):
            data.split_source(source, 2).open(name)


def test_a_file_of_another_size_is_refused(tmp_path):
    shares = files(tmp_path)
    name, size = shares.names()[0], (tmp_path / "part-0.parquet").stat().st_size
    pq.write_table(table(500), tmp_path / "part-0.parquet")
    now = (tmp_path / "part-0.parquet").stat().st_size
    text = f"part-0.parquet' of {size} bytes, as when the share was named, got {now}; put the file"
    for each in (shares, data.split_source(data.parquet(tmp_path).batch(4), 2)):
        with pytest.raises(FailedPreconditionError, match=text):
            each.open(name)


def test_a_file_that_changes_before_it_is_cut_is_refused(tmp_path):
    shares = files(tmp_path)
    pq.write_table(table(500), tmp_path / "part-0.parquet")
    with pytest.raises(FailedPreconditionError, match=r"part-0.parquet' of .* source was made"):
        shares.names()


def test_rows_of_a_file_without_positions_of_rows_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("user\n1\n2\n")
    shares = data.split_source(data.csv(tmp_path / "a.csv").batch(1), 2)
    name = f'{{"file":"{tmp_path}/a.csv","size":9,"rows":[0,1,0]}}'
    with pytest.raises(FailedPreconditionError, match=r"read by rows, got csv \(share .*a.csv"):
        shares.open(name)


def test_strides_of_another_stream_are_refused(tmp_path):
    source = data.parquet(write_parquet(tmp_path)).take(30)
    name = data.split_source(source.batch(4), 2).names()[1]
    pq.write_table(table(5), tmp_path / "part-9.parquet")
    grown = data.parquet(f"{tmp_path}/*.parquet").take(30)
    for other in (source.batch(5), grown.batch(4), [*source.batch(4)]):
        with pytest.raises(FailedPreconditionError, match="expected the stages and files of the"):
            data.split_source(other, 2).open(name)


def test_a_position_of_another_share_or_epoch_is_refused(tmp_path):
    shares = files(tmp_path)
    first, second = shares.names()[:2]
    position = shares.open(first).state_dict()
    for name, epoch in ((second, 0), (first, 1)):
        with pytest.raises(FailedPreconditionError, match=r"state of this pipeline \('epoch"):
            shares.open(name, epoch, position)


def test_a_position_after_the_end_of_a_source_is_refused():
    shares = data.split_source([*memory(6).batch(2)], 2)
    text = "of at least 4 batches, as when the position was taken, got 3; make the source"
    with pytest.raises(FailedPreconditionError, match=text):
        shares.open(shares.names()[0], position={"batches": 4})


def test_a_source_with_one_epoch_has_no_other():
    for source, workers in (([*memory(6).batch(2)], 2), (memory(6).repeat(3).batch(2), 1)):
        shares = data.split_source(source, workers)
        with pytest.raises(ValueError, match="epoch 0 of a source with one epoch, got 1"):
            shares.open(shares.names()[0], 1)
