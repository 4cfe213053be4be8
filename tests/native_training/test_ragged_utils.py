import pytest

from monolith.native_training.ragged_utils import fused_value_rowids
from monolith.ops import Ragged


@pytest.mark.req("TS-RAGU-T1")
def test_basic():
    rt = Ragged.from_lists([[], [1], [2, 3]])
    rowids = fused_value_rowids(rt)
    assert fused_value_rowids(rt) is rowids
    assert rowids.tolist() == [1, 2, 2]
