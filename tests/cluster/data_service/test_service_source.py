import json

import pytest
import torch

from tests.cluster.data_service.services import pipeline, service, users_of, write_files

pytest.importorskip("zmq")


def test_one_data_worker_gives_the_batches_of_the_pipeline(tmp_path):
    make = lambda _=1: pipeline(write_files(tmp_path / "data"), epochs=2)  # noqa: E731
    with service(make, num_workers=1) as (source, _, _), iter(source) as batches:
        served = list(batches)
    expected = list(make())
    assert len(served) == len(expected) == 32
    for ours, theirs in zip(served, expected, strict=True):
        assert ours.features["user"].to_lists() == theirs.features["user"].to_lists()
        assert torch.equal(ours.dense["price"], theirs.dense["price"])
        assert torch.equal(ours.label, theirs.label)


def test_several_data_workers_give_every_sample_once(tmp_path):
    folder = write_files(tmp_path / "data", num_files=9)
    with service(lambda _: pipeline(folder, epochs=2), num_workers=2) as (source, _, workers):
        with iter(source) as batches:
            users = users_of(batches)
        counts = [worker.status()["batches"] for worker in workers]
    assert sorted(users) == sorted(2 * users_of(pipeline(folder)))
    assert all(counts)


def test_an_iteration_goes_on_from_a_position(tmp_path):
    folder = write_files(tmp_path / "data", num_files=9)
    with service(lambda _: pipeline(folder), num_workers=2) as (source, _, _):
        with iter(source) as batches:
            first = users_of(next(batches) for _ in range(11))
            state = json.loads(json.dumps(batches.state_dict()))
        with source.resume(state) as rest:
            second = users_of(rest)
    assert sorted([*first, *second]) == sorted(users_of(pipeline(folder)))


def test_a_reader_that_was_given_up_trains_each_sample_once(tmp_path):
    folder = write_files(tmp_path / "data", num_files=9)
    make = lambda _: pipeline(folder)  # noqa: E731
    with service(make) as (source, dispatcher, _), iter(source) as batches:
        users = users_of(next(batches) for _ in range(11))
        for reading in dispatcher._host._readings.values():
            for reader in list(reading._taken):  # as after a lease of silence
                dispatcher._host.release_client(reader)
        users += users_of(batches)
    assert sorted(users) == sorted(users_of(pipeline(folder)))
