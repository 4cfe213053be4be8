import math

import pytest
import torch

from monolith.native_training.util import (
    GradClipType,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    clip_gradients,
    global_norm,
    warmed_up_norm,
)


def vectors():
    """Norm 5 together, 3 and 4 alone."""
    return [torch.tensor([-3.0, 0.0, 0.0]), torch.tensor([4.0, 0.0, 0.0])]


def first(tensors):
    return [t[0].item() for t in tensors]


# By one norm


def test_a_larger_norm_is_scaled():
    clipped, norm = clip_by_global_norm(vectors(), 4.0)
    assert first(clipped) == pytest.approx([-2.4, 3.2])
    assert norm == 5.0


@pytest.mark.parametrize("clip_norm", [5.0, 6.0, math.inf])
def test_a_norm_within_the_bound_is_left(clip_norm):
    clipped, _ = clip_by_global_norm(vectors(), clip_norm)
    assert all(map(torch.equal, clipped, vectors()))


def test_a_given_norm_is_used():
    clipped, norm = clip_by_global_norm(vectors(), 4.0, use_norm=8.0)
    assert (first(clipped), norm) == ([-1.5, 2.0], 8.0)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_gives_nan(bad):
    clipped, norm = clip_by_global_norm([*vectors(), torch.tensor([bad])], 4.0)
    assert not norm.isfinite()
    assert all(t.isnan().all() for t in clipped)


def test_inputs_stay_and_none_stays_none():
    tensors = [None, *vectors()]
    clipped, _ = clip_by_global_norm(tensors, 1.0)
    assert clipped[0] is None
    assert all(map(torch.equal, tensors[1:], vectors()))


def test_a_bound_of_0_makes_zeros_and_keeps_zeros():
    assert first(clip_by_global_norm(vectors(), 0.0)[0]) == [0.0, 0.0]
    assert clip_by_global_norm([torch.zeros(2)], 0.0)[0][0].tolist() == [0.0, 0.0]


def test_an_empty_list_has_the_norm_0():
    assert clip_by_global_norm([], 4.0) == ([], 0)


@pytest.mark.parametrize("tensors", [tuple(vectors()), torch.ones(2), "ab"])
def test_only_lists_are_taken(tensors):
    with pytest.raises(TypeError, match=r"^t_list should be a list$"):
        clip_by_global_norm(tensors, 1.0)


@pytest.mark.parametrize("bound", [-1.0, math.nan])
def test_a_bound_below_0_is_refused(bound):
    with pytest.raises(ValueError, match=rf"^\[clip_by_global_norm\] .* >= 0, got {bound}$"):
        clip_by_global_norm(vectors(), bound)
    with pytest.raises(ValueError, match=rf"^\[clip_by_value\] .* >= 0, got {bound}$"):
        clip_by_value(torch.ones(1), bound)


def test_dtypes_of_the_tensors_stay():
    tensors = [torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.bfloat16)]
    assert [t.dtype for t in clip_by_global_norm(tensors, 0.5)[0]] == [t.dtype for t in tensors]
    assert global_norm(tensors).item() == pytest.approx(2.0)


# One by one


def test_clip_by_norm_and_by_value():
    tensor = torch.tensor([3.0, -4.0])
    assert clip_by_norm(tensor, 1.0).tolist() == pytest.approx([0.6, -0.8])
    assert clip_by_norm(tensor, 6.0).tolist() == [3.0, -4.0]
    assert clip_by_value(tensor, 3.5).tolist() == [3.0, -3.5]


# Dense and sparse


@pytest.mark.parametrize(
    ("clip_type", "sparse_clip_norm", "dense", "sparse"),
    [
        (GradClipType.ClipByNorm, None, [2.5], [2.5]),
        (GradClipType.ClipByValue, None, [2.5], [2.5]),
        (GradClipType.ClipByGlobalNorm, None, [1.5], [2.0]),
        (GradClipType.ClipByGlobalNorm, 1.25, [1.5], [1.0]),
        (GradClipType.ClipByDenseAndSparse, None, [2.5], [4.0]),
        (GradClipType.ClipByDenseAndSparse, 1.0, [2.5], [1.0]),
        (GradClipType.NoClip, 1.0, [3.0], [4.0]),
        (5, None, [3.0], [4.0]),
    ],
)
def test_types_of_clipping(clip_type, sparse_clip_norm, dense, sparse):
    gradients = [torch.tensor([3.0])], [torch.tensor([4.0])]
    options = {"clip_type": clip_type, "clip_norm": 2.5, "sparse_clip_norm": sparse_clip_norm}
    found = clip_gradients(*gradients, **options)
    assert (first(found.dense), first(found.sparse)) == (dense, sparse)
    assert found.norm == (5.0 if clip_type == GradClipType.ClipByGlobalNorm else None)


def test_without_a_bound_nothing_is_clipped():
    found = clip_gradients([None, *vectors()])
    assert found.dense[0] is None
    assert first(found.dense[1:]) == [-3.0, 4.0]


def test_none_stays_none_in_every_type():
    for clip_type in GradClipType:
        found = clip_gradients([None, torch.ones(1)], [None], clip_type=clip_type, clip_norm=1.0)
        assert (found.dense[0], found.sparse) == (None, [None])


def test_the_published_step_of_a_variable_and_a_row():
    row = torch.tensor([1.0, 1.0, 1.0, 0.0])
    found = clip_gradients([torch.tensor(1.0)], [row], clip_norm=1.0)
    assert 1.0 - found.dense[0].item() == 0.5
    assert (1.0 - found.sparse[0]).tolist() == [0.5, 0.5, 0.5, 1.0]


def test_a_bound_grows_during_its_warm_up():
    assert [warmed_up_norm(8.0, step, 4) for step in (0, 1, 4, 9)] == [0.0, 2.0, 8.0, 8.0]
    assert warmed_up_norm(8.0, 0, None) == 8.0


def test_a_warm_up_of_no_steps_is_refused():
    with pytest.raises(ValueError, match=r"^\[warmed_up_norm\] expected .* >= 1, got 0$"):
        warmed_up_norm(8.0, 0, 0)
