"""Steps by the op that calls the optimizer: Shampoo, and steps with a lock."""

import threading

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from monolith.errors import FailedPreconditionError
from monolith.optim import AdamomOptimizer, RmspropOptimizer, ShampooOptimizer
from tests.optim.dense_cases import MAKERS, everything, give_gradients, parameters, run, same_bits

pytestmark = [
    pytest.mark.thorough,
    # torch's own use, when it compiles
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),
]

SHAPES = ((3, 2), (4,), (), (2, 3, 2), (0, 3), (7, 5))
SHAMPOOS = {name: make for name, make in MAKERS.items() if "shampoo" in name}
every_shampoo = pytest.mark.parametrize("make", SHAMPOOS.values(), ids=SHAMPOOS)
ALL = (AdamomOptimizer, RmspropOptimizer, ShampooOptimizer)
every_class = pytest.mark.parametrize("cls", ALL)
every_case = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def compiled(optimizer, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(lambda: optimizer.step(), fullgraph=True, backend=backend)


def run_compiled(optimizer, params, num_steps, backend="aot_eager"):
    """Steps of one graph: to compile again after the first is an error."""
    step = compiled(optimizer, backend)
    for number in range(num_steps):
        give_gradients(params, number)
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            step()


def in_groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.05}]


# 45 steps lead over the warm-up, its end, and several refreshes of statistics and preconditioners.
@pytest.mark.req("NT-SHAM-T5")
@every_shampoo
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_compiled_step_of_shampoo_is_one_graph_with_the_same_bits(make, dtype):
    params, others = parameters(SHAPES, dtype=dtype), parameters(SHAPES, dtype=dtype)
    optimizer, other = make(in_groups(params)), make(in_groups(others))
    run_compiled(optimizer, params, 45)
    run(other, others, 45)
    assert same_bits(everything(optimizer, params), everything(other, others))
    assert [group["step"] for group in optimizer.param_groups] == [45, 45]


def test_the_default_backend_gives_the_same_bits():
    params, others = parameters(SHAPES), parameters(SHAPES)
    optimizer, other = MAKERS["shampoo_mean"](params), MAKERS["shampoo_mean"](others)
    run_compiled(optimizer, params, 20, "inductor")
    run(other, others, 20)
    assert same_bits(everything(optimizer, params), everything(other, others))


@every_case
def test_a_whole_step_of_training_is_compiled_as_far_as_torch_goes(make):
    torch._dynamo.reset()
    counter, found, counts = CompileCounterWithBackend("aot_eager"), [], []
    for wrap in (lambda f: torch.compile(f, backend=counter), lambda f: f):
        params = parameters(((3, 2), (2,)))
        optimizer = make(params)

        def train(x, params=params, optimizer=optimizer):
            (x @ params[0] + params[1]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        step = wrap(train)
        for number in range(25):
            step(parameters(((8, 3),), seed=number)[0].detach())
            counts.append(counter.frame_count)
        found.append(everything(optimizer, params))
    assert same_bits(*found)
    assert counts[0] == counts[-1] > 0  # torch breaks at backward


def test_compiled_and_eager_steps_may_take_turns():
    params, others = parameters(), parameters()
    optimizer, other = MAKERS["shampoo"](params), MAKERS["shampoo"](others)
    run_compiled(optimizer, params, 25)
    run(optimizer, params, 10, first=25)
    run(other, others, 35)
    assert same_bits(everything(optimizer, params), everything(other, others))


def test_a_group_without_gradients_counts_its_steps():
    params = parameters()
    optimizer = MAKERS["shampoo"](in_groups(params))
    step = compiled(optimizer)
    for number in range(3):
        give_gradients(params[:2], number)
        step()
    assert [group["step"] for group in optimizer.param_groups] == [3, 3]
    assert list(optimizer.state) == params[:2]


def test_a_tensor_as_global_step_changes_without_compiling_again():
    now = torch.tensor(0)
    params, others = parameters(), parameters()
    optimizer = MAKERS["shampoo"](params, global_step=lambda: now)
    other = MAKERS["shampoo"](others, global_step=lambda: int(now))
    step = compiled(optimizer)
    for number in range(4):
        now.fill_(10 * number)
        give_gradients(params, number)
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            step()
        run(other, others, 1, first=number)
    assert same_bits(everything(optimizer, params), everything(other, others))


def test_a_number_as_global_step_compiles():
    now, params, others = [0], parameters(), parameters()
    optimizer, other = (
        MAKERS["shampoo"](each, global_step=lambda: now[0]) for each in (params, others)
    )
    step = compiled(optimizer)
    for number in range(5):
        now[0] = 10 * number
        give_gradients(params, number)
        step()
        run(other, others, 1, first=number)
    assert same_bits(everything(optimizer, params), everything(other, others))


def test_a_tensor_as_learning_rate_changes_without_compiling_again():
    params, others, rate = parameters(), parameters(), torch.tensor(0.5)
    optimizer, other = ShampooOptimizer(params, rate), ShampooOptimizer(others, 0.5)
    step = compiled(optimizer)
    for number in range(3):
        rate.fill_(0.5 / (number + 1))
        other.param_groups[0]["lr"] = 0.5 / (number + 1)
        give_gradients(params, number)
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            step()
        run(other, others, 1, first=number)
    assert same_bits(everything(optimizer, params), everything(other, others))


def test_the_op_passes_the_checks_of_torch():
    params = parameters(((3, 2), (4,)))
    optimizer = ShampooOptimizer(params, warmup=0)
    run(optimizer, params, 1)
    states = [tensor.clone() for p in params for tensor in optimizer.state[p].values()]
    counters = [torch.tensor(1), torch.tensor(True)]
    sizes, inputs = [len(states), 2], [p.grad for p in params]
    weights = [p.detach().clone() for p in params]
    arguments = (optimizer._handle, 0, weights, inputs, states + counters, sizes, 0.1, None)
    torch.library.opcheck(torch.ops.monolith.step_group.default, arguments)


def test_the_op_of_an_optimizer_that_is_gone_is_refused():
    with pytest.raises(FailedPreconditionError, match=r"the optimizer of handle 0 to be alive in"):
        torch.ops.monolith.step_group(0, 0, [], [], [], [], 0.1, None)


# Locking


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_compiled_step_with_a_lock_is_one_graph_with_the_same_bits(make, dtype):
    params, others = parameters(dtype=dtype), parameters(dtype=dtype)
    optimizer, other = make(in_groups(params), use_locking=True), make(in_groups(others))
    run_compiled(optimizer, params, 25, "eager")
    run(other, others, 25)
    assert same_bits(everything(optimizer, params), everything(other, others))


class WatchedLock:
    """A lock that says when somebody has come and has to wait."""

    def __init__(self, came):
        self.lock, self.came = threading.Lock(), came

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.came.set()
            self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


class Slow:
    """Adds 1 to a weight: it reads, waits until a second thread has come, and writes."""

    is_traced = False

    def _update(self, group, rate, parameters, inputs, *states):
        before = parameters[0].clone()
        if self.is_inside:
            self.came.set()
        self.is_inside = True
        self.came.wait(60)
        parameters[0].copy_(before + 1)


def step_from_threads(step, num_threads, num_steps):
    threads = [
        threading.Thread(target=lambda: [step() for _ in range(num_steps)])
        for _ in range(num_threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@every_class
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(("use_locking", "expected"), [(True, 2.0), (False, 1.0)])
def test_two_compiled_steps_at_once_lose_an_update_only_without_the_lock(
    cls, backend, use_locking, expected
):
    w = torch.nn.Parameter(torch.zeros(1))
    w.grad = torch.ones(1)
    optimizer = type("Slowed", (Slow, cls), {})([w], use_locking=use_locking)
    optimizer.is_inside, optimizer.came = False, threading.Event()
    optimizer._lock = WatchedLock(optimizer.came)
    step = compiled(optimizer, backend)
    optimizer.came.set()  # nobody comes while it is compiled
    step()
    optimizer.came.clear()
    optimizer.is_inside = False
    with torch.no_grad():
        w.zero_()
    step_from_threads(step, 2, 1)
    assert w.item() == expected


@every_class
def test_compiled_steps_of_many_threads_are_steps_one_after_another(cls):
    params, others = parameters(((300, 300),)), parameters(((300, 300),))
    for one in (params, others):
        give_gradients(one, 0)
    optimizer, other = cls(params, 0.01, use_locking=True), cls(others, 0.01)
    step = compiled(optimizer, "inductor")
    step()
    step_from_threads(step, 4, 10)
    for _ in range(41):
        other.step()
    assert same_bits(everything(optimizer, params), everything(other, others))


def test_a_backend_that_copies_is_refused_with_a_lock():
    params = parameters(((2, 2),))
    optimizer = AdamomOptimizer(params, 0.1, use_locking=True)
    give_gradients(params, 0)
    with pytest.raises(FailedPreconditionError) as caught:
        compiled(optimizer, "aot_eager")()
    assert str(caught.value) == (
        "[AdamomOptimizer.step] expected a graph that updates in place, for use_locking, got "
        "copies of 4 of 4 tensors; compile with the backend 'inductor' or 'eager', or step in "
        "one thread without use_locking"
    )
    assert not optimizer._lock.locked()
