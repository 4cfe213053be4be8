import pytest
import torch

from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.table import Table


@pytest.mark.req("NT-TESTU-T1")
@pytest.mark.parametrize("dim", [2, 5])
def test_a_missing_id_reads_zeros_and_a_step_subtracts_the_gradient(dim):
    with Table(generate_test_hash_table_config(dim).table("test")) as table:
        ids, grads = torch.tensor([7]), torch.arange(1.0, dim + 1).reshape(1, dim)
        assert table.lookup(ids).tolist() == [[0.0] * dim]
        table.apply_gradients(ids, grads)
        assert torch.equal(table.lookup(ids), -grads)


@pytest.mark.req("NT-TESTU-T1")
def test_defaults_and_learning_rate():
    assert generate_test_hash_table_config() == generate_test_hash_table_config(2, False, 1.0)
    with Table(generate_test_hash_table_config(1, learning_rate=0.5).table("test")) as table:
        table.apply_gradients(torch.tensor([7]), torch.ones(1, 1))
        assert table.lookup(torch.tensor([7])).tolist() == [[-0.5]]


@pytest.mark.req("NT-TESTU-T1")
def test_float16_rounds_weights_to_half_precision():
    with Table(generate_test_hash_table_config(4, use_float16=True).table("test")) as table:
        table.apply_gradients(torch.tensor([7]), torch.full((1, 4), 0.1))
        row = table.lookup(torch.tensor([7]))
        assert torch.equal(row, row.half().float())
        assert torch.allclose(row, torch.full((1, 4), -0.1), atol=1e-4)
