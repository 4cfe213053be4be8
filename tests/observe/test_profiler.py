import json
import tempfile

import pytest
import torch

from monolith.observe.profiler import profile_it


@pytest.fixture
def traces(tmp_path, monkeypatch):
    """Lists the traces of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda: sorted((tmp_path / "tests_profile").glob("*.pt.trace.json"))


@profile_it
def double(x, *, times=1):
    """Doubles."""
    for _ in range(times):
        x = torch.add(x, x)
    return x


@profile_it
def fail():
    torch.ones(2).sum()
    raise KeyError("as asked")


@pytest.mark.req("NT-TESTU-T3")
def test_the_result_is_returned_and_each_call_has_a_trace(traces):
    assert [double(torch.tensor(3), times=2).item() for _ in range(2)] == [12, 12]
    assert len(traces()) == 2
    events = json.loads(traces()[0].read_text())["traceEvents"]
    assert sum(event["name"] == "aten::add" for event in events) == 2
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")


@pytest.mark.req("NT-TESTU-T3")
def test_an_error_is_raised_and_the_profiler_stops(traces):
    with pytest.raises(KeyError, match="as asked"):
        fail()
    assert len(traces()) == 1
    assert double(torch.tensor(3)).item() == 6  # another one can start
    assert len(traces()) == 2
