import json
import os

import pytest

from monolith.cluster.zmq.curve_keys import CurveKeys, read_keys
from monolith.errors import InvalidArgumentError, NotFoundError


@pytest.fixture(scope="module")
def keys():
    return CurveKeys.new()


@pytest.fixture
def path(tmp_path, keys):
    path = str(tmp_path / "job.keys")
    keys.write(path)
    return path


def test_keys_are_read_as_they_were_written(path, keys):
    assert read_keys(path) == keys


def test_new_keys_differ(keys):
    assert CurveKeys.new() != keys


def test_only_the_owner_can_read_the_file(path):
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_secrets_are_not_printed(keys):
    assert keys.server_secret not in repr(keys)
    assert keys.client_secret not in repr(keys)


def test_a_file_is_not_replaced(path, keys):
    with pytest.raises(FileExistsError):
        keys.write(path)


def test_a_missing_file_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(NotFoundError, match="monolith keys new"):
        read_keys(str(tmp_path / "none"))


def test_a_file_that_others_can_read_is_refused(path):
    os.chmod(path, 0o640)
    with pytest.raises(InvalidArgumentError, match=r"got mode 640 .*chmod 600"):
        read_keys(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: "{", "expected JSON"),
        (lambda d: "[" * 30_000, "expected JSON"),
        (lambda d: "[]", "a file of format 'monolith-keys'"),
        (lambda d: json.dumps({**d, "format": "x"}), "a file of format"),
        (lambda d: json.dumps({**d, "version": 2}), "expected version 1, got 2"),
        (lambda d: json.dumps({**d, "client_secret": "x"}), "client_secret as 40 characters"),
        (lambda d: json.dumps({**d, "client_secret": 7}), "client_secret as 40 characters"),
        (lambda d: json.dumps({**d, "client_secret": "\\" * 40}), "40 characters of Z85"),
        (
            lambda d: json.dumps({**d, "server_public": d["client_public"]}),
            "expected server_public of server_secret, got another key",
        ),
    ],
)
def test_a_file_without_keys_is_refused(path, change, text):
    with open(path) as file:
        document = json.load(file)
    with open(path, "w") as file:
        file.write(change(document))
    with pytest.raises(InvalidArgumentError, match=text):
        read_keys(path)


def test_a_file_that_is_no_text_is_refused(path):
    with open(path, "wb") as file:
        file.write(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError, match="expected a file of keys"):
        read_keys(path)
