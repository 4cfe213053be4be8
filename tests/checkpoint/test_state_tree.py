import json
import math

import pytest
import torch

from monolith.checkpoint import open_checkpoint
from monolith.checkpoint.state_tree import flatten_state, unflatten_state
from monolith.errors import DataLossError
from monolith.native_training.saver import NamedTensor, PartialRecoverySaver
from monolith.train.driver import Run


@pytest.mark.parametrize(
    "state",
    [
        {"a": 1, "b": [1.5, None, True, "x"], "c": {}},
        {0: "int", "0": "str", 1.5: (1, (2, []))},
        {"$tuple": 3, "$tensor": {"$items": []}, "$float": "x"},
        {"best": math.inf, "worst": [-math.inf]},
        [],
        "text",
    ],
)
def test_a_state_comes_back_through_json(state):
    flat, tensors = flatten_state(state, "s")
    assert tensors == {}
    assert unflatten_state(json.loads(json.dumps(flat, allow_nan=False)), {}) == state


def test_tensors_are_named_by_their_place():
    state = {"a": [torch.ones(2)], "b": {3: torch.zeros(1)}}
    flat, tensors = flatten_state(state, "s")
    assert sorted(tensors) == ["s/a/0", "s/b/3"]
    back = unflatten_state(flat, tensors)
    assert back["a"][0] is tensors["s/a/0"]
    assert back["b"] == {3: tensors["s/b/3"]}


def test_not_a_number_comes_back():
    flat, _ = flatten_state({"loss": math.nan}, "s")
    assert math.isnan(unflatten_state(json.loads(json.dumps(flat, allow_nan=False)), {})["loss"])


def test_tensors_whose_places_read_alike_have_names_of_their_own():
    state = {"a": {"b": torch.ones(1)}, "a/b": torch.zeros(1), 0: torch.ones(2), "0": torch.ones(3)}
    flat, tensors = flatten_state(state, "s")
    assert len(tensors) == 4
    back = unflatten_state(flat, tensors)
    assert (back["a"]["b"], back["a/b"], len(back[0]), len(back["0"])) == (1.0, 0.0, 2, 3)


@pytest.mark.parametrize("device", ["cpu", "ps:0"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_state_with_the_name_of_a_tensor_is_refused(tmp_path, sharded, device):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.1))
    tensor = NamedTensor("sgd/param_groups/0/lr", torch.zeros(1), device)
    var_list = {"sgd": sgd, tensor.name: tensor}
    saver = PartialRecoverySaver(var_list, sharded=sharded)
    with pytest.raises(ValueError, match=r"got 'sgd/param_groups/0/lr' twice; one of them"):
        saver.save(Run(), tmp_path / "c")


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"a": {(1, 2): 3}}, r"expected keys of str or numbers, got \(1, 2\) \(s/a\)"),
        ({"a": [object()]}, r"and what JSON has, got object \(s/a/0\)"),
    ],
)
def test_what_is_no_state_is_refused(state, text):
    with pytest.raises(TypeError, match=text):
        flatten_state(state, "s")


def test_a_missing_tensor_is_named():
    with pytest.raises(DataLossError, match="expected tensor 's/a', got none"):
        unflatten_state({"a": {"$tensor": "s/a"}}, {})


def test_an_optimizer_goes_on_from_its_state(tmp_path):
    models = [torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)]
    adams = [torch.optim.Adam(model.parameters(), betas=(0.5, 0.9)) for model in models]

    def step(i):
        adams[i].zero_grad()
        models[i](torch.ones(1, 2)).sum().backward()
        adams[i].step()

    step(0)
    first, second = (PartialRecoverySaver({"model": models[i], "adam": adams[i]}) for i in (0, 1))
    second.restore(Run(), first.save(Run(), tmp_path / "c"))
    for i in (0, 1):
        step(i)
    assert torch.equal(models[0].weight, models[1].weight)
    assert adams[1].param_groups[0]["betas"] == (0.5, 0.9)
    assert "model.weight" in open_checkpoint(tmp_path / "c").tensors
