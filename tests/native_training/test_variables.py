"""Parameters of servers with local copies, on the local cluster of two servers."""

import threading

import pytest
import torch

from monolith.native_training.test_utils import create_test_ps_cluster
from monolith.native_training.variables import (
    _CACHED_VARIABLES,
    LOCAL_VARIABLES,
    CachedVariableAssociates,
    FetchAllCachedVariablesHook,
    HostedParameter,
    ServerParameter,
    _get_meta,
    _get_valid_op_name,
    assign_all_cached_variables,
    cached_value,
    cached_variable_creator,
    fetch_all_cached_variables,
)
from monolith.train.driver import Run, drive

DEVICE = "/job:ps/task:1/device:CPU:0"


@pytest.fixture
def run():
    run = Run(global_step=0)
    with run.as_current():
        yield run


@pytest.fixture
def server():
    """The second of two servers."""
    servers, cluster = create_test_ps_cluster(2)
    assert list(cluster) == ["ps"]
    with servers:
        yield servers[1]


def cached(server, name="var", initial=5.0):
    return cached_variable_creator(
        ServerParameter, server=server, name=name, initial_value=torch.tensor(initial)
    )


def direct(var):
    return var.read_value().item()


# Copies


@pytest.mark.req("TS-VARS-T1")
@pytest.mark.req("NT-VARS-T4")
def test_basic(run, server):
    var = cached(server)
    assert (var * 1.0).item() == 5.0
    var.assign_add(2.0)
    assert ((var * 1.0).item(), direct(var)) == (5.0, 7.0)
    fetch_all_cached_variables()()
    assert (var * 1.0).item() == 5.0
    assign_all_cached_variables()()
    assert (var * 1.0).item() == 7.0


@pytest.mark.req("NT-VARS-T4")
def test_a_sequence_of_updates_is_read_as_recorded(run, server):
    var, reads = cached(server), []
    fetch, assign = fetch_all_cached_variables(), assign_all_cached_variables()
    for call in (
        lambda: var.assign(1.0),
        fetch,
        lambda: var.assign_sub(3.0),
        assign,
        fetch,
        assign,
    ):
        call()
        reads.append(((var * 1.0).item(), direct(var)))
    assert reads == [(5, 1), (5, 1), (5, -2), (1, -2), (1, -2), (-2, -2)]


@pytest.mark.req("NT-VARS-T1")
def test_a_parameter_of_the_worker_itself_is_not_cached(run):
    made = ServerParameter(None, "var", torch.tensor(5.0))
    assert cached_variable_creator(lambda: made) is made
    assert made.cached_copy is None
    assert run.collection(_CACHED_VARIABLES) == run.collection(LOCAL_VARIABLES) == ()
    made.assign_add(1.0)
    assert (made * 1.0).item() == 6.0


@pytest.mark.req("NT-VARS-T2")
def test_what_no_server_holds_is_refused(run):
    text = "^Only ResourceVariable is supported. Do you disable V2 behavior or use strategy[?]$"
    for other in (torch.ones(1), torch.nn.Parameter(torch.ones(1)), None):
        with pytest.raises(ValueError, match=text):
            cached_variable_creator(lambda other=other: other)


@pytest.mark.req("NT-VARS-T2")
def test_a_parameter_is_cached_once(run, server):
    var = cached(server)
    text = "^The variable has already been cached. Consider about removing cache_device.$"
    for again in (lambda: var, lambda: ServerParameter(server, "var", torch.tensor(5.0))):
        with pytest.raises(ValueError, match=text):
            cached_variable_creator(again)


def test_the_copies_start_with_the_value_of_the_server_and_belong_to_the_worker(run, server):
    server.parameter("var", torch.full((2, 3), 4.0))
    var = cached_variable_creator(lambda: ServerParameter(server, "var", torch.zeros(2, 3)))
    copies = _get_meta().var_id_to_assoc[var.identity]
    assert isinstance(copies, CachedVariableAssociates)
    for copy in (copies.async_cached_var, copies.async_fetched_var):
        assert torch.equal(copy, torch.full((2, 3), 4.0))
        assert not copy.requires_grad
    assert copies.async_cached_var is not copies.async_fetched_var
    assert len(run.collection(LOCAL_VARIABLES)) == 2
    assert run.collection("variables") == ()
    assert run.collection(_CACHED_VARIABLES) == (var,)
    assert run.metadata["cached_variables_meta"] is _get_meta()


def test_actions_are_named_after_their_devices(run, server):
    cached(server), cached(server, "other")
    fetch_all_cached_variables()
    grouped = assign_all_cached_variables()
    device = "_job_ps_task_1_device_CPU_0"
    assert run.needed_by([f"fetch_from_{device}", f"fetch_from_{device}_1"])
    assert grouped.name == "assign_all_cached_variables"
    assert run.needed_by([grouped.name]) == {
        grouped.name,
        "assign_cached_var",
        "assign_cached_var_1",
    }


def test_a_name_of_an_action_has_no_colon_and_no_slash():
    assert _get_valid_op_name(DEVICE) == "_job_ps_task_1_device_CPU_0"


def test_the_copy_that_steps_read_is_the_same_tensor_for_ever(run, server):
    var = cached(server)
    address = var.cached_copy.data_ptr()
    var.assign_add(1.0)
    fetch_all_cached_variables()()
    assign_all_cached_variables()()
    assert var.value().data_ptr() == address
    assert var.cached_copy.item() == 6.0


class Asked(ServerParameter):
    """Notes which parameters are asked for together."""

    asked = None

    @classmethod
    def read_together(cls, parameters):
        cls.asked.append([var.name for var in parameters])
        return super().read_together(parameters)


def test_all_parameters_of_a_host_are_read_together(run, monkeypatch):
    monkeypatch.setattr(Asked, "asked", [])
    with create_test_ps_cluster(2)[0] as servers:
        for index, name in enumerate("abcd"):
            cached_variable_creator(
                lambda index=index, name=name: Asked(servers[index % 2], name, torch.zeros(1))
            )
        fetch_all_cached_variables()()
    assert Asked.asked == [["a", "c"], ["b", "d"]]


# Expressions


def test_every_expression_reads_the_copy(run, server):
    var = cached(server, initial=[2.0, 4.0])
    var.assign([0.0, 0.0])
    ones, two = torch.ones(2), torch.tensor(2.0)
    results = [var + 1, 1 + var, var - 1, 1 - var, var * two, two * var, var / 2, 2 / var, var**2]
    expected = [[3, 5], [3, 5], [1, 3], [-1, -3], [4, 8], [4, 8], [1, 2], [1, 0.5], [4, 16]]
    assert [result.tolist() for result in results] == expected
    assert [(ones @ var).item(), (var @ ones).item(), var[1].item()] == [6, 6, 4]
    assert [(-var).tolist(), (+var).tolist(), (var + var).tolist()] == [[-2, -4], [2, 4], [4, 8]]
    assert torch.nn.functional.linear(torch.ones(1, 2), var.value()[None]).item() == 6


def test_an_expression_with_a_parameter_that_is_not_cached_reads_the_server(server):
    var = ServerParameter(server, "var", torch.tensor(5.0))
    var.assign_add(1.0)
    assert (var * 1.0).item() == 6.0
    assert var.value() is server.parameter("var", torch.tensor(0.0))


class Remote(HostedParameter):
    """A parameter whose value is not the leaf that gets the gradients, as of another process."""

    def __init__(self, value):
        super().__init__("far", DEVICE, object(), torch.nn.Parameter(torch.zeros(())))
        self.true_value = torch.tensor(value)

    def read_value(self):
        return self.true_value.clone()

    def assign(self, value):
        self.true_value = torch.tensor(value)

    def assign_add(self, value):
        self.true_value = self.true_value + value


def test_a_parameter_of_another_process_is_read_and_gets_its_gradient_at_the_leaf():
    var = Remote(5.0)
    loss = var * 2.0
    loss.backward()
    assert (loss.item(), var.parameter.grad.item()) == (10.0, 2.0)


# Gradients


@pytest.mark.req("TS-VARS-T3")
def test_gradient(run, server):
    var = cached(server)
    optimizer = torch.optim.SGD([var.parameter], lr=1.0)
    (+var).backward()
    optimizer.step()
    assert (direct(var), (var * 1.0).item()) == (4.0, 5.0)


@pytest.mark.req("NT-VARS-T3")
def test_the_gradient_of_a_sum_reaches_the_parameter_of_the_server(run, server):
    var = cached(server, initial=[1.0, 2.0])
    (var * torch.tensor([3.0, 4.0])).sum().backward()
    assert server.parameter("var", torch.zeros(2)).grad.tolist() == [3.0, 4.0]
    assert var.cached_copy.grad is None


def test_gradients_of_the_true_value_are_those_of_the_parameter():
    parameter = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    copy = torch.tensor(3.0, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda var: cached_value(var, var.detach()), parameter)
    assert torch.autograd.grad(cached_value(parameter, copy) ** 2, parameter)[0].item() == 6.0


def test_a_copy_that_changes_before_the_backward_is_an_error(run, server):
    var = cached(server)
    loss = var**2
    fetch_all_cached_variables()()
    assign_all_cached_variables()()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch
def test_one_graph_reads_the_values_that_were_assigned(run, server):
    var = cached(server, initial=[1.0, 2.0])
    torch._dynamo.reset()
    step = torch.compile(
        lambda x: (x * cached_value(var.parameter, var.cached_copy)).sum(),
        fullgraph=True,
        backend="aot_eager",
    )
    losses = [step(torch.ones(2))]
    var.assign_add(1.0)
    fetch_all_cached_variables()()
    assign_all_cached_variables()()
    with torch._dynamo.config.patch(error_on_recompile=True):
        losses.append(step(torch.ones(2)))
    assert [loss.item() for loss in losses] == [3.0, 5.0]
    losses[1].backward()
    assert var.parameter.grad.tolist() == [1.0, 1.0]


# The hook


@pytest.mark.req("TS-VARS-T2")
def test_hook(run, server):
    var, reads, numbers = cached(server), [], iter(range(2))
    var.assign_sub(1.0)

    def step():
        next(numbers)
        reads.append((var * 1.0).item())

    drive(step, [FetchAllCachedVariablesHook()], run=run)
    assert reads[-1] == 4.0


def steps_of(run, var, number, hooks=None, **options):
    """What steps read that each subtract 1 from the true value at their end."""
    reads, numbers = [], iter(range(number))

    def step():
        next(numbers)
        reads.append((var * 1.0).item())
        var.assign_sub(1.0)

    drive(step, [FetchAllCachedVariablesHook()] if hooks is None else hooks, run=run, **options)
    return reads


def test_what_is_fetched_during_a_step_is_read_in_the_next(run, server):
    var = cached(server)
    var.assign_add(1.0)
    assert steps_of(run, var, 4, overlap=False) == [6.0, 6.0, 5.0, 4.0]


def test_the_fetch_overlaps_with_the_step(run, server, monkeypatch):
    var, fetched, numbers = cached(server), threading.Semaphore(0), iter([2, 1])
    read = var.read_value
    monkeypatch.setattr(var, "read_value", lambda: (read(), fetched.release())[0])

    def step():
        for _ in range(next(numbers)):  # before the first step there is a fetch too
            assert fetched.acquire(timeout=60)
        assert (var * 1.0).item() == 4.0

    var.assign_sub(1.0)
    drive(step, [FetchAllCachedVariablesHook()], run=run)


def test_parameters_that_are_cached_later_are_refreshed_too(run, server):
    hook, made, numbers = FetchAllCachedVariablesHook(), [], iter(range(3))

    def step():
        if next(numbers) == 0:
            made.append(cached(server))
            made[0].assign_add(1.0)

    drive(step, [hook], run=run)
    assert (made[0] * 1.0).item() == 6.0


def test_a_hook_serves_one_run_after_another(server):
    hook = FetchAllCachedVariablesHook()
    for name in "ab":
        run = Run()
        with run.as_current():
            var = cached(server, name)
        var.assign_sub(1.0)
        assert steps_of(run, var, 1, [hook]) == [4.0]
