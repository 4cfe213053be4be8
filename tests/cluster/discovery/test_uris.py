import json

import pytest

from monolith.cluster.discovery import (
    ConsulServiceDiscovery,
    HostServiceDiscovery,
    TfConfigServiceDiscovery,
    uris,
)
from monolith.cluster.discovery.uris import (
    FIXED,
    FORMS,
    SCHEMES,
    is_discovery,
    open_discovery,
    place_of,
)
from monolith.errors import InvalidArgumentError

CONFIG = {"cluster": {"ps": ["a:1", "b:1"], "worker": ["c:1"]}, "task": {"type": "ps", "index": 1}}


@pytest.mark.parametrize("form", ["{}/job", "file:{}/job", "file://{}/job", "FILE:{}/job"])
def test_a_folder(form, tmp_path):
    discovery = open_discovery(form.format(tmp_path))
    discovery.register("ps", 0, "a:1")
    assert isinstance(discovery, HostServiceDiscovery)
    assert (tmp_path / "job" / "ps" / "0").read_text() == "a:1"


def test_a_service_of_consul():
    discovery = open_discovery("consul://10.0.0.1:8501/my-job")
    assert isinstance(discovery, ConsulServiceDiscovery)
    assert (discovery._agent.address, discovery._service) == ("10.0.0.1:8501", "my-job")
    assert open_discovery("consul://h/j")._agent.address == "h:8500"


def test_a_node_of_zookeeper(monkeypatch):
    opened = []
    monkeypatch.setattr(uris, "ZKServiceDiscovery", lambda *arguments: opened.append(arguments))
    open_discovery("zk://a:1,b,[::1]:3/my-job")
    assert opened == [("my-job", "a:1,b:2181,[::1]:3")]


def test_the_variable_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps(CONFIG))
    discovery = open_discovery("tf-config:")
    assert isinstance(discovery, TfConfigServiceDiscovery)
    place = place_of("tf-config:")
    assert (place.name, place.index, place.address) == ("ps", 1, "b:1")
    assert place.sizes == {"ps": 2, "worker": 1}


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("etcd://a:1/job", "one of file:DIR, zk://HOST:PORT"),
        ("localhost:7000", "one of file:DIR, zk://HOST:PORT"),
        ("", "expected a folder or one of"),
        ("file:", "expected file:DIR, got 'file:'"),
        ("file://host/dir", "expected file:DIR"),
        ("zk://a:1", r"expected zk://HOST:PORT\[,HOST:PORT\]/JOB, got 'zk://a:1'"),
        ("zk:a:1/job", "expected zk://"),
        ("zk://a:1/job/more", "expected zk://"),
        ("zk://a:1,,b/job", "expected HOST:PORT, got ''"),
        ("zk://a:70000/job", "expected HOST:PORT, got 'a:70000'"),
        ("zk://user@a:1/job", "expected HOST:PORT, got 'user@a:1'"),
        ("consul:///job", "expected consul://HOST:PORT/JOB"),
        ("consul://a:1,b:2/job", "expected HOST:PORT, got 'a:1,b:2'"),
        ("tf-config:", "with the variable TF_CONFIG, got 'tf-config:' and no variable"),
    ],
)
def test_a_wrong_uri_is_refused(uri, text, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(InvalidArgumentError, match=text):
        open_discovery(uri)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a JSON object with 'cluster' and 'task', got '{'"),
        ("[]", r"expected a JSON object with .*, got '\[\]'"),
        ("[" * 100_000, "expected a JSON object"),
        ("{}", "expected the objects 'cluster' and 'task', got the keys none"),
        (
            '{"cluster": {"ps": "a"}, "task": {}}',
            r"a list of addresses as cluster\['ps'\], got 'a'",
        ),
        ('{"cluster": {"ps": [1]}, "task": {}}', "a list of addresses"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": "ps", "index": 1}}', "index 1$"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": "ps", "index": -1}}', "index -1$"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": "ps", "index": true}}', "index True$"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": "evaluator"}}', "got type 'evaluator'"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": ["ps"]}}', r"got type \['ps'\]"),
    ],
)
def test_a_wrong_variable_is_refused(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(InvalidArgumentError, match=message):
        open_discovery("tf-config:")


def test_an_index_may_be_a_text(monkeypatch):
    task = {"type": "ps", "index": "1"}
    monkeypatch.setenv("TF_CONFIG", json.dumps({**CONFIG, "task": task}))
    assert place_of("tf-config:").index == 1


@pytest.mark.parametrize("uri", ["folder", "file:folder", "zk://a:1/job", "consul://a:1/job"])
def test_other_discoveries_fix_no_place(uri):
    assert place_of(uri) is None


def test_every_scheme_has_a_form():
    assert [form.partition(":")[0] for form in FORMS] == [*SCHEMES]
    assert {*FIXED} <= {*SCHEMES}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("etcd://a:1/job", True),
        ("tf-config:", True),
        ("file:a", True),
        ("host:7000,b:7000", False),
        ("ipc:///a", False),
        ("folder", False),
        ("2", False),
    ],
)
def test_addresses_are_no_discovery(text, expected):
    assert is_discovery(text) is expected
