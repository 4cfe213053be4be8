"""Dense optimizers on an accelerator: the same numbers as on the CPU."""

import pytest
import torch

from monolith.optim import AdamomOptimizer, RmspropOptimizer
from tests.optim.dense_cases import MAKERS, everything, give_gradients, parameters, run, same_bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]
SHAPES = ((3, 2), (), (1025,), (300, 301))
ELEMENTWISE = {name: make for name, make in MAKERS.items() if "shampoo" not in name}
every_case = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
every_elementwise = pytest.mark.parametrize("make", ELEMENTWISE.values(), ids=ELEMENTWISE)


def on_both(make, shapes=SHAPES, num_steps=20, **options):
    """Parameters and state of a run on the CPU and of one on CUDA."""
    found = []
    for device in ("cpu", "cuda"):
        params = parameters(shapes, device=device)
        optimizer = make(params, **options)
        run(optimizer, params, num_steps)
        found.append(everything(optimizer, params))
        assert {tensor.device.type for tensor in found[-1]} == {device}
    return found[0], [tensor.cpu() for tensor in found[1]]


@pytest.mark.req("NT-ADAM-T4", "TS-RMSP-T2")
@every_elementwise
def test_the_fused_kernel_gives_the_bits_of_the_core(make):
    assert same_bits(*on_both(make))


@every_elementwise
def test_many_small_tensors_agree_within_rounding(make):
    for found, expected in zip(*on_both(make, ((5, 3),) * 100, num_steps=5), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in MAKERS if "shampoo" in name])
def test_shampoo_agrees(name):
    expected, found = on_both(MAKERS[name], ((6, 4), (5,)))
    for one, other in zip(found[:2], expected[:2], strict=True):  # signs of eigenvectors are free
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@every_elementwise
def test_a_learning_rate_on_the_device(make):
    params, others = parameters(SHAPES, device="cuda"), parameters(SHAPES, device="cuda")
    run(make(params, learning_rate=torch.tensor(0.125, device="cuda")), params, 3)
    run(make(others, learning_rate=0.125), others, 3)
    assert same_bits([p.detach() for p in params], [p.detach() for p in others])


@pytest.mark.parametrize(("rate_on", "params_on"), [("cpu", "cuda"), ("cuda", "cpu")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in MAKERS if name != "shampoo_mean"])
def test_a_learning_rate_on_another_device(name, dtype, rate_on, params_on):
    make, shapes = MAKERS[name], ((5, 3),) * 100  # on CUDA done by operations on lists
    params = parameters(shapes, dtype=dtype, device=params_on)
    others = parameters(shapes, dtype=dtype, device=params_on)
    run(make(params, learning_rate=torch.tensor(0.125, device=rate_on)), params, 2)
    run(make(others, learning_rate=0.125), others, 2)
    for found, expected in zip(params, others, strict=True):
        torch.testing.assert_close(found, expected)


@every_elementwise
def test_a_step_can_be_captured_in_a_graph(make):
    params, others = parameters(SHAPES, device="cuda"), parameters(SHAPES, device="cuda")
    optimizer, other = make(params), make(others)
    for one in (params, others):
        give_gradients(one, 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        other.step()
    torch.cuda.synchronize()
    assert same_bits(everything(optimizer, params), everything(other, others))


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@every_elementwise
def test_a_compiled_step_gives_the_same_bits(make):
    torch._dynamo.reset()
    params, others = parameters(SHAPES, device="cuda"), parameters(SHAPES, device="cuda")
    optimizer, other = make(params), make(others)
    step = torch.compile(lambda: optimizer.step(), fullgraph=True, backend="aot_eager")
    for number in range(3):
        give_gradients(params, number)
        step()
    run(other, others, 3)
    assert same_bits(everything(optimizer, params), everything(other, others))


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in MAKERS if "shampoo" in name])
def test_a_compiled_step_of_shampoo_agrees(name):
    torch._dynamo.reset()
    shapes = ((6, 4), (5,), ())
    params, others = parameters(shapes, device="cuda"), parameters(shapes, device="cuda")
    optimizer, other = MAKERS[name](params), MAKERS[name](others)
    step = torch.compile(lambda: optimizer.step(), fullgraph=True)
    for number in range(25):
        give_gradients(params, number)
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            step()
    run(other, others, 25)
    for found, expected in zip(params, others, strict=True):
        torch.testing.assert_close(found, expected)
    assert optimizer.param_groups[0]["step"].device.type == "cpu"


@every_case
def test_half_precision_steps(make):
    params = parameters(((6, 4),), dtype=torch.bfloat16, device="cuda")
    run(make(params), params, 3)
    assert params[0].isfinite().all()


def test_devices_may_be_mixed():
    params = parameters(((3, 2),)) + parameters(((3, 2),), device="cuda")
    run(AdamomOptimizer(params, 0.1), params, 1)
    alone = parameters(((3, 2),))
    run(AdamomOptimizer(alone, 0.1), alone, 1)
    assert torch.equal(params[0], alone[0])
    assert params[1].device.type == "cuda"


def test_state_moves_with_a_state_dict():
    params, others = parameters(SHAPES), parameters(SHAPES, device="cuda")
    optimizer, other = RmspropOptimizer(params, 0.1), RmspropOptimizer(others, 0.1)
    run(optimizer, params, 2)
    other.load_state_dict(optimizer.state_dict())
    run(other, others, 1)
    assert {tensor.device.type for tensor in everything(other, others)} == {"cuda"}
