import pytest
import torch


@pytest.fixture
def compiled():
    """Compiles a function whole, and forgets it afterwards."""
    yield lambda function: torch.compile(function, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
