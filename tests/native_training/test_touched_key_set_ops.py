import pytest
import torch

from monolith.native_training.touched_key_set_ops import TouchedKeySet


@pytest.mark.req("TS-TKS-T1")
def test_touched_key_set_basic():
    touched = TouchedKeySet(1000, 1)
    assert touched.insert(torch.arange(1000)) == 0
    assert torch.equal(touched.steal().sort().values, torch.arange(1000))


@pytest.mark.req("TS-TKS-T2")
def test_touched_key_set_overflow():
    touched = TouchedKeySet(1000, 1)
    assert touched.insert(torch.arange(1005)) == 1001
    assert touched.steal().sort().values.tolist() == [1001, 1002, 1003, 1004]
