"""The ways of a step: core, list operations of torch, the op, a compiled graph."""

import importlib
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from monolith.ops.compiled import load_native
from monolith.optim import AdamomOptimizer
from monolith.optim.dense_step import DenseStep
from monolith.optim.update_rules import NUM_STATES, RULES
from tests.optim.dense_cases import MAKERS, everything, give_gradients, parameters, run, same_bits

pytestmark = [
    pytest.mark.thorough,
    # torch's own use, when it compiles
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),
]

OPTIONS = [0.9, 0.8, 0.01, 0.1]
SHAPES = ((3, 5), (1,), (0,), (), (200, 300))
ELEMENTWISE = {name: make for name, make in MAKERS.items() if "shampoo" not in name}
every_rule = pytest.mark.parametrize("rule", RULES)
every_elementwise = pytest.mark.parametrize("make", ELEMENTWISE.values(), ids=ELEMENTWISE)


def lists(rule, shapes=SHAPES, seed=0):
    """Parameters, gradients and a list for each state, all positive."""
    made = [[p.detach().abs() for p in parameters(shapes, seed=seed + i)] for i in range(2)]
    more = range(2, 2 + NUM_STATES[rule])
    return made + [[p.detach().abs() for p in parameters(shapes, seed=seed + i)] for i in more]


def copies(tensors):
    return [[t.clone() for t in one] for one in tensors]


@every_rule
def test_core_and_list_operations_agree_within_rounding(rule):
    ours = lists(rule)
    torchs = copies(ours)
    DenseStep(rule, OPTIONS, 0.1).run(*ours)
    weights, grads, *states = torchs
    RULES[rule](weights, grads, [t for one in states for t in one], OPTIONS, 0.1)
    for one, other in zip(ours, torchs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@every_rule
def test_the_core_is_called_once_for_many_tensors(rule, monkeypatch):
    calls, native = [], load_native()
    whole = native.dense_step
    monkeypatch.setattr(native, "dense_step", lambda *a: (calls.append(len(a[1])), whole(*a)))
    DenseStep(rule, OPTIONS, 0.1).run(*lists(rule, ((2, 2),) * 50))
    assert calls == [50]


@every_rule
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_do_not_change_a_bit(rule, num_threads):
    ours, before = lists(rule), torch.get_num_threads()
    one = copies(ours)
    DenseStep(rule, OPTIONS, 0.1).run(*one)
    try:
        torch.set_num_threads(num_threads)
        DenseStep(rule, OPTIONS, 0.1).run(*ours)
    finally:
        torch.set_num_threads(before)
    assert all(map(same_bits, ours, one))


@every_rule
def test_strides_do_not_matter(rule):
    plain = lists(rule, ((6, 4),))
    odd = [[t.t().contiguous().t() for t in one] for one in plain]
    mixed = copies(plain)
    mixed[1] = [t.t().contiguous().t() for t in mixed[1]]
    for one in (plain, odd, mixed):
        DenseStep(rule, OPTIONS, 0.1).run(*one)
    assert all(map(same_bits, plain, mixed))
    for one, other in zip(plain, odd, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@every_rule
def test_dtypes_may_be_mixed(rule):
    singles, doubles = lists(rule), [[t.double() for t in one] for one in lists(rule)]
    both = [a + b for a, b in zip(copies(singles), doubles, strict=True)]
    DenseStep(rule, OPTIONS, 0.1).run(*both)
    DenseStep(rule, OPTIONS, 0.1).run(*singles)
    assert all(
        same_bits(one[: len(SHAPES)], other) for one, other in zip(both, singles, strict=True)
    )
    for one, other in zip(both[0][len(SHAPES) :], singles[0], strict=True):
        torch.testing.assert_close(one, other.double(), rtol=0, atol=1e-6)


def test_states_of_another_size_are_refused_by_torch():
    weights, grads, m, _ = lists("rmsprop", ((2, 3),))
    with pytest.raises(RuntimeError, match="size"):
        DenseStep("rmsprop", OPTIONS, 0.1).run(weights, grads, m, [torch.ones(7)])


def test_a_subclass_of_tensors_takes_the_list_operations():
    class Mine(torch.Tensor):
        pass

    plain = lists("rmsprop", ((2, 3),))
    mine = copies(plain)
    mine[0] = [t.as_subclass(Mine) for t in mine[0]]
    for one in (plain, mine):
        DenseStep("rmsprop", OPTIONS, 0.1).run(*one)
    torch.testing.assert_close(plain[0][0], mine[0][0].as_subclass(torch.Tensor))


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "monolith.optim._triton_step", raising=False)
    with pytest.raises(ImportError, match="expected Triton for a step on CUDA, got none; pip"):
        importlib.import_module("monolith.optim._triton_step")


# As an op, and compiled


@every_rule
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_the_op_passes_the_checks_of_torch(rule, rate):
    weights, grads, *states = lists(rule, ((3, 2), (4,)))
    flat = [t for one in states for t in one]
    number, tensor = (0.0, rate) if isinstance(rate, torch.Tensor) else (rate, None)
    arguments = (rule, weights, grads, flat, OPTIONS, number, tensor)
    torch.library.opcheck(torch.ops.monolith.dense_step.default, arguments)


def compiled_and_eager(make, num_steps=4, **options):
    """What both left behind, and how many graphs were compiled."""
    torch._dynamo.reset()
    params, others = parameters(), parameters()
    optimizer, other = make(params, **options), make(others, **options)
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda: optimizer.step(), fullgraph=True, backend=counter)
    for number in range(num_steps):
        give_gradients(params, number)
        step()
    run(other, others, num_steps)
    return everything(optimizer, params), everything(other, others), counter.frame_count


@every_elementwise
def test_a_compiled_step_is_one_graph_with_the_same_bits(make):
    found, expected, num_graphs = compiled_and_eager(make)
    assert same_bits(found, expected)
    assert num_graphs == 1


@every_elementwise
def test_a_function_as_learning_rate_compiles(make):
    found, expected, num_graphs = compiled_and_eager(make, learning_rate=lambda: 0.125)
    assert same_bits(found, expected)
    assert num_graphs == 1


def test_a_tensor_as_learning_rate_changes_without_compiling_again():
    torch._dynamo.reset()
    params, others, rate = parameters(), parameters(), torch.tensor(0.5)
    optimizer, other = AdamomOptimizer(params, rate), AdamomOptimizer(others, 0.5)
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda: optimizer.step(), fullgraph=True, backend=counter)
    for number in range(3):
        rate.fill_(0.5 / (number + 1))
        other.param_groups[0]["lr"] = 0.5 / (number + 1)
        give_gradients(params, number)
        step()
        run(other, others, 1, first=number)
    assert same_bits(everything(optimizer, params), everything(other, others))
    assert counter.frame_count == 1
