"""Ranks find each other, and tell each other why they end."""

import socket
import threading
import time

import pytest
import torch
import torch.distributed as dist

from monolith.cluster.ranks import channel
from monolith.cluster.ranks.rank_group import (
    RankGroup,
    RankOptions,
    _port_of,
    group_of_file,
    group_of_torchrun,
)
from monolith.errors import CancelledError, InvalidArgumentError, UnavailableError
from tests.cluster.ranks.rank_threads import run_ranks


def test_values_of_all_ranks_are_gathered_in_their_order():
    def body(group):
        value = {"rank": group.rank, "rows": torch.full((group.rank + 1,), 7.0)}
        return [(v["rank"], v["rows"].tolist()) for v in group.control.gather(value)]

    expected = [(0, [7.0]), (1, [7.0, 7.0]), (2, [7.0] * 3)]
    assert run_ranks(3, body) == [expected] * 3


def test_the_value_of_rank_0_is_shared():
    assert run_ranks(2, lambda group: group.control.share(group.rank + 5)) == [5, 5]


def test_tensors_are_broadcast_and_added_up():
    def body(group):
        values, sums = torch.full((2,), float(group.rank)), torch.full((2,), group.rank + 1.0)
        group.dense.broadcast(values)
        group.dense.begin_all_reduce(sums)()
        return values.tolist(), sums.tolist(), group.dense.num_bytes > 0

    assert run_ranks(2, body) == [([0.0, 0.0], [3.0, 3.0], True)] * 2


def test_a_rank_outside_of_the_job_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"expected a rank in \[0, 2\), got 2"):
        RankGroup(dist.HashStore(), 2, 2)


def test_two_ranks_of_one_number_are_refused():
    store = dist.HashStore()
    store.set("rank/1", "another process")
    with pytest.raises(InvalidArgumentError, match="expected one rank 1, got two: another process"):
        RankGroup(store, 1, 2)


def test_a_rank_that_is_missing_is_named():
    with pytest.raises(UnavailableError, match=r"expected 3 ranks within 0.2 s, got none of 1, 2"):
        RankGroup(dist.HashStore(), 0, 3, RankOptions(start_seconds=0.2))


def test_a_file_that_is_not_written_is_told(tmp_path):
    with pytest.raises(UnavailableError, match="expected rank 0 to write its port to"):
        _port_of(str(tmp_path / "port"), 1, 0.2)


def test_a_rank_0_that_is_gone_is_told(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "port"
    path.write_text(str(port))
    with pytest.raises(UnavailableError, match=rf"the store of the ranks at port {port}, which"):
        group_of_file(str(path), 1, 2, RankOptions(1, 1))


def test_a_process_that_torchrun_did_not_start_is_told(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidArgumentError, match=r"got no RANK, WORLD_SIZE.*monolith launch"):
        group_of_torchrun()


def test_facts_that_differ_are_refused_in_all_ranks():
    errors = []

    def body(group):
        try:
            group.check_equal({"settings": ["steps 5", f"seed {group.rank // 2}"]})
        except InvalidArgumentError as error:
            errors.append(str(error))

    run_ranks(3, body)
    assert len(errors) == 3
    assert all("got 'seed 0' in rank 0 and 'seed 1' in rank 2" in text for text in errors)


def test_the_reason_of_a_rank_that_fails_reaches_a_rank_that_waits():
    found = {}

    def body(group):
        if group.rank == 1:
            time.sleep(0.3)
            raise ValueError("no such column")
        try:
            group.control.gather(None)
        except UnavailableError as error:
            found["text"], found["has_failed"] = str(error), group.has_failed
            raise

    with pytest.raises((ValueError, UnavailableError)):
        run_ranks(2, body)
    assert "rank 1 failed: ValueError: no such column" in found["text"]
    assert found["has_failed"]


def test_a_rank_that_is_late_in_a_collective_is_named():
    has_ended = threading.Event()

    def body(group):
        if group.rank == 1:
            return has_ended.wait(20)
        try:
            group.lookups.gather(None)
        finally:
            has_ended.set()

    text = "rank 1 did not come to collective 1 of lookups: no end within 1 s"
    with pytest.raises(UnavailableError, match=text):
        run_ranks(2, body, RankOptions(20, 1))


@pytest.mark.slow
def test_control_waits_for_a_rank_that_gives_signs_of_life():
    def body(group):
        if group.rank == 1:
            time.sleep(5)
        return len(group.control.gather(None))

    assert run_ranks(2, body, RankOptions(20, 1)) == [2, 2]


def test_a_cancelled_wait_ends():
    ended = threading.Event()

    def body(group):
        if group.rank == 1:
            return ended.wait(20)
        threading.Timer(0.2, group.cancel).start()
        try:
            group.lookups.gather(None)
        except CancelledError:
            ended.set()
        return ended.is_set()

    assert run_ranks(2, body) == [True, True]


@pytest.mark.slow
def test_patience_has_an_end(monkeypatch):
    monkeypatch.setattr(channel, "_PATIENT_SECONDS", 1)

    def body(group):
        if group.rank == 1:
            ended.wait(40)
            return
        try:
            group.control.gather(None)
        finally:
            ended.set()

    ended = threading.Event()
    with pytest.raises(UnavailableError, match=r"collective \d of control: no end within 1 s"):
        run_ranks(2, body, RankOptions(20, 1.5))


def test_a_rank_that_fails_waits_no_more():
    ended = threading.Event()

    def body(group):
        if group.rank == 1:
            return ended.wait(20)
        group.fail(ValueError("wrong"))
        try:
            group.lookups.gather(None)
        except CancelledError:
            ended.set()
        return ended.is_set()

    assert run_ranks(2, body) == [True, True]


def test_an_error_after_the_failure_of_another_rank_is_explained():
    found = {}
    told = threading.Event()

    def body(group):
        if group.rank == 0:
            assert group.explain(CancelledError("a wait")).args == ("a wait",)
            told.wait(20)
        else:
            group.fail(ValueError("no such column"))
            told.set()
        while not group.has_failed:
            time.sleep(0.01)
        found[group.rank] = [str(group.explain(e("a wait"))) for e in (CancelledError, ValueError)]

    run_ranks(2, body)
    assert "rank 1 failed: ValueError: no such column" in found[0][0]
    assert found[0][1:] + found[1] == ["a wait"] * 3
