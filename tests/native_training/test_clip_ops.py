import torch

from monolith.native_training.clip_ops import clip_by_global_norm, global_norm
from monolith.native_training.gradient_utils import GradClipType


def test_clip_by_global_norm():
    tensors = [torch.tensor([-3.0, 0.0, 0.0]), torch.tensor([4.0, 0.0, 0.0])]
    clipped, norm = clip_by_global_norm(tensors, 4.0)
    assert norm == global_norm(tensors) == 5.0
    torch.testing.assert_close(torch.stack(clipped)[:, 0], torch.tensor([-2.4, 3.2]))


def test_numbers_of_the_clip_types():
    assert {kind.name: kind.value for kind in GradClipType} == {
        "ClipByNorm": 1,
        "ClipByGlobalNorm": 2,
        "ClipByValue": 3,
        "ClipByDenseAndSparse": 4,
        "NoClip": 5,
    }
