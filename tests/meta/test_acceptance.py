import json

import pytest

from tests.meta.tree import ROOT
from tools.device_tests import RESULTS, digest_of_test

pytestmark = pytest.mark.dist  # each test runs pytest in a process of its own

HEADER = "import pytest\nreq = pytest.mark.req\n"


@pytest.fixture
def outcomes_of(pytester, monkeypatch):
    """Runs a test file in a fresh project and returns what the plugin wrote."""

    def run(source, *options):
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        pytester.makeini("[pytest]\nmarkers =\n    req(*ids): acceptance ids\n    gpu: device")
        pytester.makeconftest('pytest_plugins = ["tests.acceptance"]')
        pytester.makepyfile(HEADER + source)
        pytester.runpytest_subprocess(*options)
        return json.loads((pytester.path / "build" / "acceptance.json").read_text())

    return run


def test_an_id_passes_when_its_test_passes(outcomes_of):
    assert outcomes_of("@req('A')\ndef test_a(): pass") == {"A": "passed"}


def test_one_failed_test_fails_the_id(outcomes_of):
    source = "@req('A')\ndef test_a(): assert 0\n@req('A')\ndef test_b(): pass"
    assert outcomes_of(source) == {"A": "failed"}


def test_an_id_with_a_passed_and_a_skipped_test_is_passed_in_part(outcomes_of):
    source = "@req('A')\ndef test_a(): pass\n@req('A')\ndef test_b(): pytest.skip('x')"
    assert outcomes_of(source) == {"A": "passed in part"}


def test_a_failed_test_outweighs_passed_and_skipped_ones(outcomes_of):
    source = "@req('A')\n@pytest.mark.parametrize('n', 'abc')\ndef test_a(n):\n"
    source += "    if n == 'b': pytest.skip('x')\n    assert n != 'c'"
    assert outcomes_of(source) == {"A": "failed"}


def test_an_id_of_skipped_tests_only_is_skipped(outcomes_of):
    assert outcomes_of("@req('A')\n@pytest.mark.skip\ndef test_a(): pass") == {"A": "skipped"}


def test_a_failing_fixture_fails_the_id(outcomes_of):
    source = "@pytest.fixture\ndef bad(): assert 0\n@req('A')\ndef test_a(bad): pass"
    assert outcomes_of(source) == {"A": "failed"}


def test_a_failing_tear_down_fails_the_id(outcomes_of):
    source = (
        "@pytest.fixture\ndef bad():\n    yield\n    assert 0\n@req('A')\ndef test_a(bad): pass"
    )
    assert outcomes_of(source) == {"A": "failed"}


def test_a_mark_lists_several_ids_and_a_class_mark_reaches_its_tests(outcomes_of):
    source = "@req('A')\nclass TestX:\n    @req('B', 'C')\n    def test_a(self): pass"
    assert outcomes_of(source) == {"A": "passed", "B": "passed", "C": "passed"}


def test_a_run_on_two_workers_records_the_same(outcomes_of):
    source = "@req('A')\ndef test_a(): assert 0\n@req('B')\ndef test_b(): pass"
    assert outcomes_of(source, "-n2") == {"A": "failed", "B": "passed"}


def test_parts_of_an_id_on_two_workers_are_one_outcome(outcomes_of):
    source = "@req('A')\ndef test_a(): pass\n@req('A')\ndef test_b(): pytest.skip('x')"
    assert outcomes_of(source, "-n2") == {"A": "passed in part"}


GPU = "@req('A')\ndef test_a(): pass\n@pytest.mark.gpu\n@req('A')\ndef test_b(): pytest.skip('x')"


@pytest.fixture
def run_with_device(pytester, outcomes_of):
    """Runs `GPU` after a recorded run on a device, in which `test_b` had an outcome."""

    def run(outcome, change="", *options):
        path = pytester.makepyfile(HEADER + GPU)
        runs = [
            {
                "sources": {path.name: digest_of_test(path.name, pytester.path)},
                "tests": {f"{path.name}::test_b": outcome},
            },
            {"sources": {}, "tests": {"test_other.py::test_b": "passed"}},
        ]
        (pytester.path / RESULTS).parent.mkdir(parents=True)
        (pytester.path / RESULTS).write_text(json.dumps(runs))
        states = outcomes_of(GPU + change, *options)
        notes = json.loads((pytester.path / "build" / "acceptance_notes.json").read_text())
        return states, notes

    return run


@pytest.mark.parametrize("options", [(), ("-n2",)])
@pytest.mark.parametrize(("outcome", "state"), [("passed", "passed"), ("failed", "failed")])
def test_a_skipped_device_test_has_its_outcome_on_the_device(
    run_with_device, outcome, state, options
):
    assert run_with_device(outcome, "", *options) == ({"A": state}, {})


def test_a_device_outcome_of_another_test_source_does_not_count(run_with_device):
    states, notes = run_with_device("passed", "\n# changed")
    assert states == {"A": "passed in part"}
    assert notes == {"A": "device result out of date"}


def test_a_skip_without_the_marker_has_no_outcome_of_a_device(run_with_device, monkeypatch):
    monkeypatch.setitem(globals(), "GPU", GPU.replace("@pytest.mark.gpu\n", ""))
    assert run_with_device("passed") == ({"A": "passed in part"}, {})
