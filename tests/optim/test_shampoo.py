import numpy as np
import pytest
import torch

from monolith.optim import ShampooOptimizer, shampoo
from monolith.optim.shampoo import apply_sparse_precond, eigen_inverse_root
from tests.optim.dense_cases import ShampooByHand, inverse_root_by_hand


def stepped(w, gradients, **options):
    """The parameter after each step, and the optimizer."""
    parameter = torch.nn.Parameter(torch.tensor(w))
    optimizer, found = ShampooOptimizer([parameter], **options), []
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        found.append(parameter.detach().clone())
    return found, optimizer


@pytest.mark.req("NT-SHAM-T1")
def test_shapes_of_the_state():
    parameter = torch.nn.Parameter(torch.zeros(3, 250))
    parameter.grad = torch.ones(3, 250)
    optimizer = ShampooOptimizer([parameter])
    optimizer.step()
    assert {slot: tuple(t.shape) for slot, t in optimizer.state[parameter].items()} == {
        "s0": (3, 3),
        "g0": (3, 3),
        "pvec0": (3, 3),
        "pval0": (3,),
        "o0": (),
        "s1": (250, 250),
        "g1": (250, 250),
        "pvec1": (250, 200),
        "pval1": (200,),
        "o1": (),
        "d": (3, 250),
        "m": (3, 250),
        "pm": (3, 250),
    }


@pytest.mark.req("NT-SHAM-T2")
def test_the_first_step_before_warm_up():
    (found,), _ = stepped([1.0, 2.0], [[0.1, -0.2]])
    torch.testing.assert_close(found, torch.tensor([0.997, 2.003]))


def test_the_published_step_before_warm_up():
    (found,), _ = stepped([0.1, -0.2], [[0.3, -0.4]])
    torch.testing.assert_close(found, torch.tensor([0.097, -0.197]))


@pytest.mark.req("NT-SHAM-T3")
@pytest.mark.parametrize(
    ("p", "ends", "values"), [(2, (1, 1), [0.5, 0.25]), (4, (100, 100), [0.70710678, 0.5])]
)
def test_inverse_roots_of_all_eigenvalues(p, ends, values):
    vectors, found, offset = eigen_inverse_root(torch.diag(torch.tensor([4.0, 16.0])), p, *ends)
    torch.testing.assert_close(found, torch.tensor(values))
    assert offset == 0
    assert torch.equal(vectors.abs(), torch.eye(2))


@pytest.mark.req("NT-SHAM-T4")
def test_inverse_roots_leave_out_zeros_and_the_middle():
    mat = torch.diag(torch.tensor([0.0, 1.0, 4.0, 16.0]))
    vectors, values, offset = eigen_inverse_root(mat, p=2, head=1, tail=1)
    assert vectors.abs().argmax(0).tolist() == [1, 3]
    torch.testing.assert_close(values, torch.tensor([-3.0, -3.75]))
    assert offset == 4


@pytest.mark.req("NT-SHAM-T4")
def test_inverse_roots_take_back_zeros_that_are_needed():
    mat = torch.diag(torch.tensor([0.0, 0.0, 4.0, 16.0]))
    _, values, offset = eigen_inverse_root(mat, p=2, head=2, tail=1)
    torch.testing.assert_close(values, torch.tensor([31.6227766, 0.5, 0.25]))
    assert offset == 0


def test_inverse_roots_without_an_eigenvalue_above_the_damping_start_at_the_first():
    mat = torch.diag(torch.tensor([0.0, 1e-5, 2e-5, 3e-5]))
    vectors, values, offset = eigen_inverse_root(mat, p=2, head=1, tail=1)
    assert vectors.abs().argmax(0).tolist() == [0, 3]
    torch.testing.assert_close(offset, torch.tensor(1.5e-5))
    torch.testing.assert_close(values, torch.full((2,), 31.6227766 - 1.5e-5))


def test_inverse_roots_of_half_precision_come_back_in_it():
    found = eigen_inverse_root(torch.diag(torch.tensor([4.0, 16.0])).bfloat16(), 2, 1, 1)
    assert {tensor.dtype for tensor in found} == {torch.bfloat16}
    assert found[1].tolist() == [0.5, 0.25]


def test_preconditioning_rotates_the_axes():
    tensor = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
    mat = np.cov(np.random.default_rng(0).normal(size=(2, 9)))
    found = apply_sparse_precond(tensor, *eigen_inverse_root(torch.from_numpy(mat), 6, 1, 1))
    whole = inverse_root_by_hand(mat, 6, 1, 1, 1e-3)
    expected = np.moveaxis(np.tensordot(whole, tensor.numpy(), axes=(1, 0)), 0, -1)
    np.testing.assert_allclose(found.numpy(), expected)
    assert found.shape == (3, 4, 2)


def test_preconditioning_by_the_offset_alone_gives_the_tensor_back_after_all_axes():
    tensor = found = torch.randn(2, 3, 4)
    for dim in tensor.shape:
        found = apply_sparse_precond(found, torch.zeros(dim, 1), torch.zeros(1), 2.0)
    assert torch.equal(found, 8 * tensor)


@pytest.mark.req("NT-SHAM-T5")
def test_the_schedule_of_refreshes(monkeypatch):
    computed, refreshed, blends = [], [], []
    whole = shampoo.eigen_inverse_root
    monkeypatch.setattr(
        shampoo, "eigen_inverse_root", lambda *a: (computed.append(t), whole(*a))[1]
    )
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = ShampooOptimizer([w], tau_1=2, tau_2=3, warmup=4, learning_rate=1.0)
    before = None
    for t in range(13):
        w.grad, old = torch.tensor([1.0 + t, 1.0]), w.detach().clone()
        optimizer.step()
        if not torch.equal(optimizer.state[w]["g0"], torch.zeros(2, 2) if t == 0 else before):
            refreshed.append(t)
        before = optimizer.state[w]["g0"].clone()
        if not torch.allclose(old - w.detach(), optimizer.state[w]["m"]):
            blends.append(t)
    assert refreshed == [0, 3, 6, 9, 12]
    assert computed == [6, 8, 10, 12]
    assert blends == [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.req("NT-SHAM-T6")
def test_a_few_steps_equal_a_reference_in_float64():
    options = {"warmup": 1, "tau_1": 1, "tau_2": 1}
    random = np.random.default_rng(3)
    w, gradients = random.normal(size=(3, 2)), random.normal(size=(5, 3, 2))
    found, _ = stepped(w.astype("float32"), gradients.astype("float32"), **options)
    double = ShampooByHand(0.03, 0.9, 1.0, 1, 1, 1, 100, 100, 1e-3)
    for t, gradient in enumerate(gradients):
        w = double.step(0, w, gradient, t)
        np.testing.assert_allclose(found[t].numpy(), w, atol=1e-5)


def test_the_published_steps_after_warm_up():
    gradients = [[[0.1, 0.2], [0.3, 0.4]], [[0.2, 0.1], [0.0, 0.3]], [[0.1, -0.1], [0.2, 0.1]]]
    found, _ = stepped([[1.0, 2.0], [3.0, 4.0]], gradients, warmup=1, tau_1=1, tau_2=1)
    expected = [
        [[0.997, 1.997], [2.997, 3.997]],
        [[0.9916167, 1.9929584], [2.9943, 3.9925]],
        [[0.9873094, 1.9983936], [2.9891166, 3.9900555]],
    ]
    torch.testing.assert_close(torch.stack(found), torch.tensor(expected))


@pytest.mark.parametrize("warmup", [0, -3])
def test_no_warm_up_preconditions_the_first_step(warmup):
    (found,), _ = stepped([[1.0, 2.0]], [[[0.1, 0.2]]], warmup=warmup)
    w = ShampooByHand(0.03, 0.9, 1.0, warmup, 200, 20, 100, 100, 1e-3).step(
        0, np.array([[1.0, 2.0]]), np.array([[0.1, 0.2]]), 0
    )
    np.testing.assert_allclose(found.numpy(), w, atol=1e-5)
    assert not np.allclose(w, [[0.997, 1.997]])


def test_a_given_step_decides_the_schedule():
    gradients = [[0.1, 0.3], [0.2, 0.1]]
    counted, _ = stepped([1.0, 2.0], gradients, warmup=0, tau_1=1, tau_2=1)
    given, optimizer = stepped(
        [1.0, 2.0], gradients, warmup=5, tau_1=1, tau_2=1, global_step=lambda: 10
    )
    assert torch.equal(counted[1], given[1])
    assert optimizer.param_groups[0]["step"] == 2


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'decay'"):
        ShampooOptimizer([torch.nn.Parameter(torch.ones(1))], decay=1)


def test_the_same_input_gives_the_same_bits():
    gradients = np.random.default_rng(0).normal(size=(9, 6, 5)).astype("float32")
    w = np.ones((6, 5), "float32")
    first, second = (stepped(w, gradients, warmup=2, tau_1=2, tau_2=1)[0] for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_a_parameter_without_elements_is_left_alone(shape):
    w = torch.nn.Parameter(torch.ones(shape))
    w.grad = torch.ones(shape)
    optimizer = ShampooOptimizer([w], warmup=0, tau_1=1, tau_2=1)
    optimizer.step()
    assert optimizer.state[w]["d"].shape == shape


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_statistics_that_are_not_finite_are_refused_by_the_number_of_the_parameter(bad):
    w, other = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2))
    optimizer = ShampooOptimizer([{"params": other}, {"params": w}], warmup=0, tau_1=2, tau_2=1)
    w.grad, other.grad = torch.ones(2, 3), torch.ones(2, 3)
    optimizer.step()
    w.grad[1, 2] = bad
    optimizer.step()  # computes no preconditioners
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        optimizer.step()
    assert str(caught.value) == (
        "[ShampooOptimizer.step] expected finite statistics, got NaN or Inf in s0 of parameter "
        "number 1 of shape (2, 3): one of its gradients was not finite, or its square was not; "
        "load a state from before, and skip such steps (torch.amp.GradScaler) or clip them"
    )


def test_statistics_that_are_not_finite_are_refused_by_the_name_of_the_parameter():
    model = torch.nn.Linear(2, 1)
    optimizer = ShampooOptimizer(model.named_parameters(), warmup=0)
    model(torch.full((1, 2), float("nan"))).sum().backward()
    with pytest.raises(ValueError, match=r"in s0 of parameter weight of shape \(1, 2\): one of"):
        optimizer.step()


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's own use
def test_statistics_that_are_not_finite_are_refused_in_a_graph_that_copies():
    w = torch.nn.Parameter(torch.ones(2))
    w.grad = torch.full((2,), float("nan"))
    torch._dynamo.reset()
    optimizer = ShampooOptimizer([w], warmup=0)
    step = torch.compile(lambda: optimizer.step(), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"in s0 of parameter \(a copy made by the compiler\) of"):
        step()


def test_counters_of_a_state_may_be_plain_numbers():
    gradients = np.ones((3, 2, 2), "float32")
    _, optimizer = stepped(np.ones((2, 2), "float32"), gradients, warmup=0)
    state = optimizer.state_dict()
    state["param_groups"][0] |= {"step": 7, "is_preconditioned": True}
    optimizer.load_state_dict(state)
    group = optimizer.param_groups[0]
    assert torch.equal(group["step"], torch.tensor(7))
    assert torch.equal(group["is_preconditioned"], torch.tensor(True))
