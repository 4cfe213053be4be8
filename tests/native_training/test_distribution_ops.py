import torch

from monolith.native_training import distribution_ops


def test_the_import_path_of_the_reference_system_leads_to_the_ops():
    ids = torch.tensor([0, 1, 2, 2, 3])
    parts = distribution_ops.split_by_indices(ids % 3, ids, 3)
    assert [part.tolist() for part in parts] == [[0, 3], [1], [2, 2]]
    assert callable(distribution_ops.fused_embedding_to_layout)
    assert callable(distribution_ops.fill_with_offset_map)
    assert callable(distribution_ops.aligned_flat_concat)
