"""URIs of streams and their errors."""

import pytest

from monolith.data.files.stream_uri import StreamUri, is_stream_uri


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tail:clicks", StreamUri("tail", "clicks")),
        ("tail:/a/b c/?pattern=*.jsonl", StreamUri("tail", "/a/b c/", (), {"pattern": "*.jsonl"})),
        ("tail:a%3Fb", StreamUri("tail", "a?b")),
        ("kafka://a:9092/t", StreamUri("kafka", "a:9092", ("t",))),
        ("kafka://a:1,[::1]:2/t,u", StreamUri("kafka", "a:1,[::1]:2", ("t", "u"))),
        (
            "kafka://a:1/t?group=g&start=latest",
            StreamUri("kafka", "a:1", ("t",), {"group": "g", "start": "latest"}),
        ),
    ],
)
def test_a_uri_has_parts(text, wanted):
    assert StreamUri.of(text) == wanted
    assert StreamUri.of(str(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("clicks/", "expected tail:FOLDER, or kafka://HOST:PORT/TOPIC"),
        ("kafka:a:1/t", "expected tail:FOLDER, or kafka://"),
        ("http://a:1/t", "expected tail:FOLDER, or kafka://"),
        ("tail:", "expected a folder after tail:, got none"),
        ("tail:a?patern=*", "expected options of pattern, got 'patern'.*did you mean 'pattern'"),
        ("kafka://a/t", "expected HOST:PORT after kafka://, got 'a'"),
        ("kafka://a:b/t", "expected HOST:PORT after kafka://, got 'a:b'"),
        ("kafka://a:1,/t", "expected HOST:PORT after kafka://, got ''"),
        ("kafka://a:1", "expected a topic after kafka://a:1/, got ''"),
        ("kafka://a:1/t,", "expected a topic after kafka://a:1/, got 't,'"),
        ("kafka://a:1/t?grup=g", "got 'grup'.*did you mean 'group'"),
    ],
)
def test_a_wrong_uri_is_refused(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        StreamUri.of(text)


def test_a_start_replaces_that_of_the_uri():
    uri = StreamUri.of("kafka://a:1/t?start=earliest&group=g")
    assert StreamUri.of(uri.starting("latest")).options == {"start": "latest", "group": "g"}


def test_a_folder_begins_with_its_first_file():
    uri = StreamUri.of("tail:clicks")
    assert uri.starting("earliest") == "tail:clicks"
    with pytest.raises(ValueError, match="expected earliest as the start of tail:clicks, got"):
        uri.starting("latest")


@pytest.mark.parametrize(("path", "is_uri"), [("tail:a", True), ("a/tail:", False), (["a"], False)])
def test_other_paths_are_no_uris(path, is_uri):
    assert is_stream_uri(path) is is_uri
