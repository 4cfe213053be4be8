import pytest

from benchmarks.metrics import Fit, all_sinks
from benchmarks.trainer import Small, pipeline_batches

pytestmark = pytest.mark.thorough


def test_sinks_change_no_loss_and_are_written(tmp_path):
    sinks, batches = all_sinks(str(tmp_path)), pipeline_batches()
    with_sinks, without = (Fit(Small(), batches, 2, sink) for sink in (sinks, None))
    assert with_sinks.run(6) == without.run(6)
    sinks.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) >= 3
    assert with_sinks.sample(2).value > 0
    assert len(with_sinks.cpu_seconds) == 1
