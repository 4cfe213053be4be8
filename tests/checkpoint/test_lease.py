"""Leases of a store: one run at a time, also after a run that was killed."""

import json
import logging
import os
import threading

import fsspec
import pytest

from monolith.checkpoint import lease as lease_module
from monolith.checkpoint.lease import LEASE_FILE, Lease
from monolith.checkpoint.run_lock import only_run
from monolith.errors import FailedPreconditionError, OpError


@pytest.fixture
def folder(tmp_path):
    return f"memory://lease-{tmp_path.name}"


class Waits:
    """A clock that a lease waits by; may do something at a wait."""

    def __init__(self, act=lambda number: None):
        self.seconds, self._act, self._number = 0.0, act, 0

    def __call__(self, seconds):
        self.seconds += seconds
        self._number += 1
        self._act(self._number)


def lease_of(folder, wait=None):
    return Lease(folder, clock=lambda: 1_700_000_000.0, wait=wait or Waits())


def content(folder):
    path = f"{folder}/{LEASE_FILE}"
    system, inner = fsspec.core.url_to_fs(path)
    return json.loads(system.cat_file(inner)) if system.exists(inner) else None


def test_a_lease_names_its_owner_and_goes_with_its_release(folder):
    lease = lease_of(folder)
    lease.acquire()
    facts = content(folder)
    assert facts["owner"].startswith(f"process {os.getpid()} on ")
    assert facts["renewed"] == "2023-11-14 22:13:20 UTC"
    lease.release()
    assert content(folder) is None


def test_a_run_beside_one_that_renews_its_lease_is_refused(folder):
    first = lease_of(folder)
    first.acquire()
    wait = Waits(lambda number: first.renew() if number == 3 else None)
    text = (
        rf"expected one run that saves into {folder}, got a second beside that of process "
        rf"{os.getpid()} on \S+ \(last renewed 2023-11-14 22:13:20 UTC\); choose another folder"
    )
    with pytest.raises(FailedPreconditionError, match=text):
        lease_of(folder, wait).acquire()
    assert wait.seconds == 3 * Lease.poll_seconds
    assert content(folder)["num_renewals"] == 1


def test_the_lease_of_a_killed_run_is_taken_over_when_its_time_is_over(folder, caplog):
    lease_of(folder).acquire()
    wait = Waits()
    second = lease_of(folder, wait)
    second.acquire()
    assert wait.seconds == Lease.seconds + Lease.poll_seconds
    assert f"has the lease {folder}/{LEASE_FILE}; waiting up to 60 s for a sign" in caplog.text
    assert "was not renewed for 60 s; taking it over" in caplog.text
    second.release()
    assert content(folder) is None


def test_a_lease_that_is_given_back_meanwhile_is_free(folder):
    first = lease_of(folder)
    first.acquire()
    wait = Waits(lambda number: first.release() if number == 2 else None)
    lease_of(folder, wait).acquire()
    assert wait.seconds == 2 * Lease.poll_seconds


def test_of_two_runs_that_take_a_lease_over_the_last_one_has_it(folder):
    lease_of(folder).acquire()
    rival = lease_of(folder)

    def take_over(number):
        if number == 31:  # the wait after the removal of the old lease
            fsspec.filesystem("memory").rm(f"{folder}/{LEASE_FILE}")
            rival.acquire()

    with pytest.raises(FailedPreconditionError, match="got a second"):
        lease_of(folder, Waits(take_over)).acquire()
    rival.renew()
    rival.check()


def test_of_two_runs_that_make_a_lease_the_first_one_has_it(folder, monkeypatch):
    first, second = lease_of(folder), lease_of(folder)
    answers = iter([None])
    monkeypatch.setattr(second, "_read", lambda: next(answers, b"[]"))
    first.acquire()
    with pytest.raises(FailedPreconditionError, match=r"an unknown run \(last renewed never\)"):
        second.acquire()
    first.renew()
    first.check()


def test_a_run_whose_lease_was_taken_over_is_told_and_leaves_the_new_one(folder):
    first, second = lease_of(folder), lease_of(folder)
    first.acquire()
    second.acquire()
    first.renew()
    with pytest.raises(FailedPreconditionError, match=r"got that of process \d+ on .* took it ov"):
        first.check()
    first.release()
    assert content(folder) is not None
    second.check()


def test_a_lease_that_was_deleted_is_written_again(folder):
    lease = lease_of(folder)
    lease.acquire()
    fsspec.filesystem("memory").rm(f"{folder}/{LEASE_FILE}")
    lease.renew()
    lease.check()
    assert content(folder)["num_renewals"] == 1


def test_ctrl_c_after_a_takeover_leaves_no_lease(folder):
    lease_of(folder).acquire()

    def interrupt(number):
        if number == 31:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lease_of(folder, Waits(interrupt)).acquire()
    assert content(folder) is None


def test_a_thread_renews_the_lease_of_a_run(folder, monkeypatch):
    is_renewed, renew = threading.Event(), Lease.renew

    def note(lease):
        renew(lease)
        is_renewed.set()

    monkeypatch.setattr(Lease, "renew", note)
    monkeypatch.setattr(Lease, "seconds", 0.01)
    with only_run(folder) as check:
        assert is_renewed.wait(60)
        check()
        assert content(folder)["num_renewals"] > 0
    assert content(folder) is None


def test_a_store_that_is_gone_for_a_while_ends_no_run(folder, monkeypatch, caplog):
    is_told = threading.Event()

    def fail(lease):
        is_told.set()
        raise OSError("no answer")

    monkeypatch.setattr(Lease, "seconds", 0.01)
    monkeypatch.setattr(Lease, "renew", fail)
    with only_run(folder) as check:
        assert is_told.wait(60)
        check()
    assert f"the lease {folder}/{LEASE_FILE} is not renewed: no answer" in caplog.text


def test_a_lease_that_cannot_be_given_back_is_told(folder, monkeypatch, caplog):
    def fail(lease):
        raise OSError("no answer")

    monkeypatch.setattr(Lease, "release", fail)
    with only_run(folder):
        pass
    text = f"the lease {folder}/{LEASE_FILE} stays (no answer); the next run waits 60 s"
    assert text in caplog.text


def test_a_directory_that_cannot_be_written_is_an_op_error(folder, monkeypatch):
    def fail(system, *arguments, **options):
        raise PermissionError("denied")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", fail)
    text = rf"expected to write {folder}/{LEASE_FILE}, got denied"
    with pytest.raises(OpError, match=text), only_run(folder):
        pass


def test_the_thread_of_a_lost_lease_ends_with_an_error_in_the_log(folder, monkeypatch, caplog):
    monkeypatch.setattr(Lease, "seconds", 0.01)
    caplog.set_level(logging.ERROR)
    with only_run(folder) as check:
        fsspec.filesystem("memory").pipe_file(f"{folder}/{LEASE_FILE}", b'{"owner": "another"}')
        (thread,) = (t for t in threading.enumerate() if t.name == "monolith-lease")
        thread.join(60)
        with pytest.raises(FailedPreconditionError, match="got that of another"):
            check()
    assert "another (last renewed never) has taken over the lease" in caplog.text
    assert content(folder) == {"owner": "another"}


def test_the_end_of_a_run_does_not_wait_for_a_renewal_that_hangs(folder, monkeypatch, caplog):
    is_hanging, is_over = threading.Event(), threading.Event()

    def hang(lease):
        is_hanging.set()
        is_over.wait()

    monkeypatch.setattr(Lease, "seconds", 0.01)
    monkeypatch.setattr(Lease, "renew", hang)
    monkeypatch.setattr(lease_module, "_JOIN_SECONDS", 0.01)
    with only_run(folder):
        assert is_hanging.wait(60)
    is_over.set()
    assert f"the lease {folder}/{LEASE_FILE} stays (a renewal hangs); the next" in caplog.text
