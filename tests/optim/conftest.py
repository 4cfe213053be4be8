import pytest
import torch

from monolith.table import Zeros
from tests.nn.cases import make_bag


@pytest.fixture
def bag():
    return make_bag(initializer=Zeros())


@pytest.fixture
def model(bag):
    torch.manual_seed(0)
    return torch.nn.Sequential(bag, torch.nn.Linear(2, 1))
