import os

import pytest

from monolith import environment as config


@pytest.fixture
def unset(monkeypatch):
    """Removes a variable for one test, whatever the test does to it."""

    def remove(name):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    return remove


@pytest.mark.req("NT-UTIL-T5")
def test_the_metric_prefix_is_set_in_the_environment(unset):
    unset("MONOLITH_METRIC_PREFIX")
    assert config.metric_prefix() == "monolith.training"
    config.set_metric_prefix("clicks")
    assert config.metric_prefix() == os.environ["MONOLITH_METRIC_PREFIX"] == "clicks"


@pytest.mark.req("NT-UTIL-T5")
def test_the_directory_of_tests_comes_from_the_environment(unset, monkeypatch):
    unset("TEST_TMPDIR")
    assert config.tests_directory() == "/tmp"
    monkeypatch.setenv("TEST_TMPDIR", "elsewhere")
    assert config.tests_directory() == "elsewhere"


def test_variables_are_found_by_how_they_begin(monkeypatch):
    monkeypatch.setenv("MONOLITH_SET_B", "2")
    monkeypatch.setenv("MONOLITH_SET_A", "1")
    assert config.variables("MONOLITH_SET_") == {"MONOLITH_SET_A": "1", "MONOLITH_SET_B": "2"}
