"""`ServerHook` and its client, with a run on a thread."""

import contextlib
import threading

import grpc
import pytest
import torch

from monolith.cluster.job.shared_state import LocalSharedState
from monolith.control import ADDRESS_FILE
from monolith.errors import DeadlineExceededError, UnavailableError
from monolith.native_training.barrier_ops import BarrierOp
from monolith.native_training.hooks.server import constants, service_pb2
from monolith.native_training.hooks.server.client_lib import get_stub_from_model_dir
from monolith.native_training.hooks.server.server_lib import ServerHook, _BarrierControl
from monolith.native_training.save_utils import NoFirstSaveCheckpointSaverHook, SaveHelper
from monolith.native_training.saver import PartialRecoverySaver
from monolith.train.driver import Run, drive
from tests.train.roles.job_tasks import wait_for


class Training:
    """A run on a thread, whose steps take 10 ms, until the block ends."""

    def __init__(self, folder, capacity=1):
        self.folder, self.run, self.is_over = folder, Run(global_step=0), threading.Event()
        self.barrier = BarrierOp(capacity, wait_seconds=0.01, shared=LocalSharedState())
        saver = PartialRecoverySaver({"w": torch.zeros(1)})
        self.saver = NoFirstSaveCheckpointSaverHook(str(folder), save_steps=1 << 30, saver=saver)
        self.hooks = [self.saver, ServerHook(folder, self.barrier, self.saver)]

    def _step(self):
        if self.is_over.wait(0.01):
            raise StopIteration
        self.run.global_step += 1

    @contextlib.contextmanager
    def going(self):
        thread = threading.Thread(target=lambda: drive(self._step, self.hooks, run=self.run))
        thread.start()
        try:
            wait_for((self.folder / ADDRESS_FILE).exists)
            with get_stub_from_model_dir(self.folder) as stub:
                yield stub
        finally:
            self.is_over.set()
            thread.join(60)


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


@pytest.mark.req("TS-SRVLIB-T1")
def test_basic(training, tmp_path):
    with training.going() as stub:
        stub.StopTraining(service_pb2.StopTrainingRequest())
        with pytest.raises(grpc.RpcError) as error:
            stub.StopTraining(service_pb2.StopTrainingRequest())
        assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert error.value.details() == "Barrier is placed already."
        status = stub.GetBlockStatus(service_pb2.GetBlockStatusRequest())
        assert (list(status.blocked_indices), list(status.unblocked_indices)) == ([0], [])
        stub.ResumeTraining(service_pb2.ResumeTrainingRequest())
        assert list(stub.GetBlockStatus().blocked_indices) == []
        first = stub.GetTrainingStatus().global_step
        stub.SaveCheckpoint(service_pb2.SaveCheckpointRequest())
        last = stub.GetTrainingStatus(service_pb2.GetTrainingStatusRequest()).global_step
        steps = SaveHelper(str(tmp_path / "model.ckpt")).get_existing_checkpoint_steps()
        assert len(steps) == 1
        assert first <= min(steps) <= last


@pytest.mark.req("TS-SRVLIB-T2")
def test_the_address_is_there_during_the_run_and_nobody_listens_after_it(training, tmp_path):
    with training.going():
        address = (tmp_path / constants.SERVER_ADDR_FILENAME).read_text()
        assert address.startswith("127.0.0.1:")
    assert not (tmp_path / "controller_server_addr.txt").exists()
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary("/Controller/GetTrainingStatus")(b"", timeout=10)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_worker_that_does_not_wait_is_not_blocked(tmp_path):
    with Training(tmp_path, capacity=3).going() as stub:
        stub.StopTraining()
        status = stub.GetBlockStatus()
        assert (list(status.blocked_indices), list(status.unblocked_indices)) == ([0], [1, 2])


def test_an_error_of_a_save_is_the_caller_s(training, monkeypatch):
    def fail(*arguments, **options):
        raise UnavailableError("no space left")

    with training.going() as stub, monkeypatch.context() as patch:
        patch.setattr(training.saver, "_try_to_save", fail)
        with pytest.raises(grpc.RpcError) as error:
            stub.SaveCheckpoint()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error.value.details() == "no space left"


def test_a_save_is_given_up_at_the_deadline_of_the_call(training):
    control = _BarrierControl(training.run, "saves", training.barrier, training.saver)
    with pytest.raises(DeadlineExceededError, match=r"a step boundary of the run within 0\.05 s"):
        control.save(0.05)  # nobody makes a step
    assert training.saver._requests == []
