"""Parameters of server processes with local copies: what TS-VARS says of one process."""

import pytest
import torch

from monolith.cluster.job.job_client import JobClient
from monolith.cluster.job.served_dense import ServedDense
from monolith.train.driver import Run, drive
from monolith.train.hooks import RefreshHook
from tests.cluster.server_processes import Nursery, connect
from tests.native_training.jobs.served_tasks import Fives, start_servers

pytestmark = pytest.mark.dist


class Variable:
    """The parameter v1 of the second of two server processes, and its copy in a model.

    Attributes:
        served: Copies of all parameters.
    """

    def __init__(self, job):
        self._job, self.model = job, Fives().build()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.served = ServedDense(job, self.model, optimizer, wants_values=False)
        self.served.send_all()

    def assign_add(self, value):
        """Step on the server alone, as another worker does."""
        gradients = [[], [("v1", torch.tensor([-value]))]]
        with self._job.pushing(gradients, "", [], [], wants_values=False):
            """No table."""

    @property
    def direct(self):
        ((_, value),) = self._job.read_dense([-1, -1])[1][1]
        return value.item()

    @property
    def copy(self):
        return (self.model.v1 * 1.0).item()


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def variable(nursery):
    with connect(start_servers(nursery, "Fives")) as servers, JobClient(servers) as job:
        job.join([], {})
        yield Variable(job)


@pytest.mark.req("TS-VARS-T1")
def test_a_copy_is_as_it_was_until_fetch_and_refresh(variable):
    assert variable.copy == 5.0
    variable.assign_add(2.0)
    assert (variable.copy, variable.direct) == (5.0, 7.0)
    variable.served.fetch()
    assert variable.copy == 5.0
    variable.served.refresh()
    assert variable.copy == 7.0


@pytest.mark.req("TS-VARS-T2")
def test_the_hook_brings_the_value_within_two_steps(variable):
    variable.assign_add(-1.0)
    reads, numbers = [], iter(range(2))

    def step():
        next(numbers)
        reads.append(variable.copy)

    drive(step, [RefreshHook(variable.served)], run=Run(global_step=0))
    assert reads[0] in (4.0, 5.0)
    assert variable.copy == 4.0


@pytest.mark.req("TS-VARS-T3")
def test_a_gradient_steps_the_parameter_of_the_server_and_not_the_copy(variable):
    (+variable.model.v1).backward()
    with variable.served.collect():
        """No table."""
    assert (variable.direct, variable.copy) == (4.0, 5.0)
