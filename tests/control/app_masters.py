"""Application masters on servers of gRPC, at Unix sockets in the working directory."""

import contextlib
import threading
from concurrent import futures

import grpc

from monolith.control import app_master_pb2 as messages
from monolith.control import app_master_pb2_grpc as services

STATES = messages.CreateSavepointStatusResponse
CALLS = ("kill", "succeed", "createSavepoint", "createSavepointStatus")


class FakeMaster:
    """Keeps the requests, with the seconds until their deadlines, and gives prepared answers.

    Args:
        states: States that a savepoint has, one after another.
        code: Code of the answer to createSavepoint.
        is_hung: Whether calls get no answer before the end.
    """

    def __init__(self, states=(), *, code=0, is_hung=False):
        self.states, self.code, self.requests = list(states), code, []
        self.end = threading.Event()
        if not is_hung:
            self.end.set()

    def kill(self, request, context):
        return self._note("kill", request, context) or messages.KillResponse()

    def succeed(self, request, context):
        return self._note("succeed", request, context) or messages.SucceedResponse()

    def createSavepoint(self, request, context):  # noqa: N802 -- the name of the call
        self._note("createSavepoint", request, context)
        return messages.CreateSavepointResponse(
            code=self.code, message="no room", savepoint_id="123"
        )

    def createSavepointStatus(self, request, context):  # noqa: N802
        self._note("createSavepointStatus", request, context)
        return STATES(create_savepoint_state=self.states.pop(0), message="of the data")

    def _note(self, name, request, context):
        self.requests.append((name, request, context.time_remaining()))
        self.end.wait(30)

    @property
    def calls(self):
        return [name for name, _, _ in self.requests]


@contextlib.contextmanager
def serving(master, name):
    """Serve at the Unix socket `name` of the working directory."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    services.add_AppMasterServiceServicer_to_server(master, server)
    server.add_insecure_port(f"unix:{name}")
    server.start()
    try:
        yield master
    finally:
        master.end.set()
        server.stop(None).wait(10)


@contextlib.contextmanager
def babbling(name):
    """Serve answers that are no messages."""
    babble = grpc.unary_unary_rpc_method_handler(lambda request, context: b"\xff")
    handler = grpc.method_handlers_generic_handler(
        "primus.AppMasterService", dict.fromkeys(CALLS, babble)
    )
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{name}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait(10)
