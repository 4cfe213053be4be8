"""Give the client of a controller."""

import os

from monolith.control import ControllerStub


def get_stub_from_model_dir(model_dir: "str | os.PathLike[str]") -> ControllerStub:
    """Return the calls to the controller of the run in a model directory, with its token.

    Raises:
        NotFoundError: No controller has written an address there.
    """
    return ControllerStub.of_model_dir(os.fspath(model_dir))
