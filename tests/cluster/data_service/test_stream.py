import threading

import pytest
import torch

from monolith.cluster.data_service.batch_codec import batch_from_value
from monolith.cluster.data_service.stream import Stream
from monolith.data import Batch
from monolith.data.shares.counted_batches import CountedBatches
from monolith.errors import DataLossError


def batch(number):
    return Batch(dense={"x": torch.full((1,), float(number))})


class Source:
    """Gives batches, and notes how many it gave."""

    def __init__(self, count, error=None):
        self._count, self._error = count, error
        self.num_given = 0
        self.changed = threading.Condition()

    def __iter__(self):
        for number in range(self._count):
            with self.changed:
                self.num_given += 1
                self.changed.notify_all()
            yield batch(number)
        if self._error is not None:
            raise self._error

    def await_given(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.num_given >= count, 20)


def stream_of(source, ahead=2):
    return Stream(lambda: CountedBatches(source, 0, 1, None), ahead)


def answer(stream, number, taken=None):
    """An answer, also one that comes later."""
    found = stream.read(number, number if taken is None else taken)
    return found if isinstance(found, tuple) else found.result(20)


def test_a_stream_gives_batches_with_positions_and_says_which_is_the_last():
    stream = stream_of(Source(3))
    kinds = [answer(stream, number) for number in range(4)]
    assert [kind for kind, *_ in kinds] == ["batch", "batch", "batch", "end"]
    assert [batch_from_value(value).dense["x"].item() for _, value, *_ in kinds[:3]] == [0, 1, 2]
    assert [position for _, _, position, _ in kinds[:3]] == [
        '{"batches": 1}',
        '{"batches": 2}',
        '{"batches": 3}',
    ]
    assert [is_last for *_, is_last in kinds[:3]] == [False, False, True]


def test_a_stream_reads_no_further_ahead_than_it_may():
    source = Source(100)
    stream = stream_of(source, ahead=3)
    source.await_given(5)  # three, and two in hand
    assert answer(stream, 0)[0] == "batch"
    assert not threading.Event().wait(0.1)
    assert (source.num_given, stream.num_batches) == (5, 3)
    answer(stream, 1)  # the reader has the first one
    source.await_given(6)
    stream.close()
    stream.join()
    assert source.num_given <= 7


def test_an_answer_can_be_read_again_until_it_is_taken():
    stream = stream_of(Source(3))
    first = answer(stream, 0)
    assert answer(stream, 0) is first
    answer(stream, 1)
    assert stream.read(0, 1).done() is False  # gone: nobody asks for it again
    stream.close()


def test_an_error_comes_after_the_batches_before_it():
    stream = stream_of(Source(2, DataLossError("file 7 is damaged")))
    assert [answer(stream, number)[0] for number in range(2)] == ["batch", "batch"]
    for _ in range(2):
        with pytest.raises(DataLossError, match="file 7 is damaged"):
            answer(stream, 2)


def test_an_error_before_the_first_batch_is_told():
    with pytest.raises(DataLossError, match="nothing"):
        answer(stream_of(Source(0, DataLossError("nothing"))), 0)


def test_a_reader_that_waits_too_long_is_told_so():
    stream = stream_of(Source(0))
    assert answer(stream, 0) == ("end",)
    future = stream.read(5, 0)
    stream.tick(0.0)
    assert not future.done()
    stream.tick(float("inf"))
    assert future.result(0) == ("wait",)


def test_a_stream_that_is_closed_ends_its_thread():
    source = Source(100)
    stream = stream_of(source)
    future = stream.read(50, 0)
    stream.close()
    stream.close()
    stream.join()
    assert future.result(0) == ("wait",)
    assert not stream._thread.is_alive()


def test_a_read_after_the_end_of_a_stream_is_answered():
    stream = stream_of(Source(100))
    stream.close()
    assert stream.read(50, 0) == ("wait",)


def test_a_stream_opens_its_share_on_its_thread():
    opens = threading.Event()

    def open_slowly():
        assert opens.wait(20)
        return CountedBatches(Source(1), 0, 1, None)

    stream = Stream(open_slowly, 2)
    future = stream.read(0, 0)
    stream.tick(float("inf"))
    assert future.result(0) == ("wait",)
    opens.set()
    assert answer(stream, 0)[0] == "batch"


def test_an_error_of_the_opening_is_the_first_answer():
    def fail():
        raise DataLossError("file 7 is gone")

    with pytest.raises(DataLossError, match="file 7 is gone"):
        answer(Stream(fail, 2), 0)
