"""`monolith demo stream`: clicks, a trainer that is killed, and a count of each click."""

import json
import os

import pytest

from monolith.cli.demos.click_stream import NUM_ITEMS, NUM_USERS, FolderWriter, events, produce
from monolith.cli.demos.stream_demo import Counts
from tests.cli.run import run

FAST = ("--clicks", "4000", "--rate", "2000")


def test_clicks_have_every_user_and_item_and_are_equal_for_equal_seeds():
    clicks = list(events(NUM_USERS))
    assert {click["user"] for click in clicks} == set(range(NUM_USERS))
    assert {click["item"] for click in clicks} == set(range(NUM_ITEMS))
    assert [click["event"] for click in clicks] == list(range(NUM_USERS))
    assert clicks == list(events(NUM_USERS))


def test_a_folder_gets_whole_lines(tmp_path):
    produce(700, 1e6, FolderWriter(tmp_path / "clicks"))
    (file,) = (tmp_path / "clicks").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event"] for line in lines] == list(range(700))
    assert file.read_text().endswith("\n")


def test_a_folder_of_something_else_is_not_removed(capsys, monkeypatch, tmp_path):
    (tmp_path / "precious.txt").touch()
    ran = run(capsys, monkeypatch, "demo", "stream", "--source", "folder", "--folder", tmp_path)
    assert ran.status == 1
    assert "expected a new folder, or one of a demonstration" in ran.err
    assert os.listdir(tmp_path) == ["precious.txt"]


def test_a_broker_without_its_client_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = run(capsys, monkeypatch, "demo", "stream", "--source", "broker")
    assert ran.status == 1
    assert "expected confluent-kafka with --source broker, got none" in ran.err


class Rows:
    """A checkpoint whose table of events has some weights."""

    def __init__(self, *weights):
        self.weights = weights

    def load_tables(self):
        return {"event": self}

    def export(self):
        import torch

        class Chunk:
            columns = {"weight/0": torch.tensor([[weight] for weight in self.weights])}

        return [Chunk()]


def test_rows_tell_how_often_an_event_was_trained():
    assert Counts.of(Rows(-1.0, -1.0, -2.0), 5) == Counts(5, once=2, often=1, never=2)


@pytest.mark.dist
@pytest.mark.parametrize("source", ["folder", pytest.param("broker", marks=pytest.mark.slow)])
def test_every_click_is_trained_once_over_a_kill(capsys, monkeypatch, tmp_path, source):
    options = ("--source", source, "--folder", tmp_path / "demo", *FAST, "--json")
    ran = run(capsys, monkeypatch, "demo", "stream", *options)
    assert ran.status == 0, ran.err
    assert json.loads(ran.out) == {"num_events": 4000, "once": 4000, "often": 0, "never": 0}
    assert "$ kill -9 " in ran.err
    assert "--resume" in ran.err
    assert "before they were learned, newest click " in ran.err
    assert (
        "4,000 clicks, by the rows of the checkpoint: 4,000 trained once, 0 more often" in ran.err
    )
