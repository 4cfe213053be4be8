"""`DenseShard` against optimizers of torch, and what it refuses."""

import copy
import json
import threading

import pytest
import torch

from monolith.cluster.job.dense_shard import (
    DenseShard,
    DenseState,
    describe_dense,
    group_options,
    join_values,
    place_parameters,
    trained_parameters,
)
from monolith.errors import InvalidArgumentError
from monolith.optim import AdamomOptimizer, RmspropOptimizer, ShampooOptimizer

MAKERS = {
    "momentum": lambda groups: torch.optim.SGD(groups, 0.1, momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, 0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, 0.01, betas=(0.5, 0.9), weight_decay=0.1),
    "adamom": lambda groups: AdamomOptimizer(groups, 0.1),
    "rmsprop": lambda groups: RmspropOptimizer(groups, 0.1),
    "shampoo": lambda groups: ShampooOptimizer(groups, 0.1),
}


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))


def groups_of(module):
    return [{"params": [*module[0].parameters()]}, {"params": [*module[1].parameters()], "lr": 0.5}]


def shards_of(make, num_servers=2):
    """Servers, each with a model of its own, as processes have them."""
    shards = []
    for index in range(num_servers):
        module = model()
        optimizer = make(groups_of(module))
        parameters = trained_parameters(module, optimizer)
        shards.append(DenseShard(parameters, optimizer, index, num_servers))
    return shards


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(p.shape, generator=generator) for n, p in model().named_parameters()}


def step(shard, grads, options=""):
    own = [(name, grads[name].clone()) for name in shard.names if name in grads]
    shard.check(own, options)
    return shard.step(own, options)


def one(lr=0.5, **options):
    weight = torch.nn.Parameter(torch.ones(2))
    return DenseShard({"w": weight}, torch.optim.SGD([weight], lr, **options), 0, 1)


def test_parameters_are_spread_by_size_and_every_process_finds_the_same_places():
    sizes = {f"p{i}": torch.ones(i) for i in range(1, 41)}
    places = place_parameters(sizes, 3)
    loads = [sum(len(sizes[n]) for n in sizes if places[n] == server) for server in range(3)]
    assert max(loads) - min(loads) <= 40
    assert places == place_parameters(dict(reversed(list(sizes.items()))), 3)
    assert list(places) == list(sizes)


def test_parameters_of_one_size_have_their_places_by_name():
    assert place_parameters({"b": torch.ones(1), "a": torch.ones(1)}, 2) == {"b": 1, "a": 0}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_steps_of_all_servers_are_those_of_one_optimizer(make):
    module, shards = model(), shards_of(make)
    optimizer = make(groups_of(module))
    for number in range(4):
        for group in optimizer.param_groups:
            group["lr"] *= 0.9  # a schedule
        grads = gradients(number)
        for name, parameter in module.named_parameters():
            parameter.grad = grads[name].clone()
        options = group_options(optimizer)
        optimizer.step()
        assert [step(shard, grads, options) for shard in shards] == [number + 1] * 2
    values = join_values([shard.read(-1) for shard in shards])
    assert all(torch.equal(values[n], p) for n, p in module.named_parameters())


def test_betas_travel_as_a_tuple():
    (shard,) = shards_of(MAKERS["adamw"], 1)
    groups = json.loads(group_options(shard._optimizer))
    groups[0]["betas"] = [0.1, 0.2]
    step(shard, gradients(1), json.dumps(groups))
    assert [g["betas"] for g in shard._optimizer.param_groups] == [(0.1, 0.2), (0.5, 0.9)]


def test_options_that_are_no_finite_numbers_stay_at_home():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([{"params": [weight], "name": "a"}], lr=0.1)
    optimizer.param_groups[0]["lr"] = float("inf")
    assert set(json.loads(group_options(optimizer))[0]).isdisjoint({"name", "lr", "params"})


def test_a_parameter_without_a_gradient_stays_as_it_is():
    (shard,) = shards_of(MAKERS["momentum"], 1)
    grads = {n: g for n, g in gradients(1).items() if n.startswith("0.")}
    step(shard, grads)
    values, before = dict(shard.read(-1)[1]), dict(model().named_parameters())
    assert [n for n in before if torch.equal(values[n], before[n])] == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([("x", torch.ones(2))], r"a gradient of a parameter of this server \(w\), got 'x'"),
        ([("w", torch.ones(3))], r"of 'w' with shape \(2,\) and torch.float32, got \(3,\)"),
        ([("w", torch.ones(2).double())], r"torch.float32, got \(2,\) and torch.float64"),
    ],
)
def test_gradients_of_another_task_are_refused(given, words):
    with pytest.raises(InvalidArgumentError, match=words):
        one().check(given, "")


def test_a_server_without_parameters_says_so():
    shard = DenseShard({}, None, 1, 2)
    with pytest.raises(InvalidArgumentError, match=r"of this server \(there is none\), got 'w'"):
        shard.check([("w", torch.ones(1))], "")
    assert shard.step([], "") == shard.export().version == 1


ADAM = '[{"betas": [0.9, 0.9]}]'


@pytest.mark.parametrize(
    "options",
    [
        *("5", "{", "[]", "[[]]", "[{}, {}]", '[{"params": [1]}]', '[{"x": 1}]', "[" * 100_000),
        *('[{"lr": null}]', '[{"lr": "a"}]', '[{"lr": true}]', '[{"lr": NaN}]', '[{"lr": [1]}]'),
        *('[{"nesterov": 1}]', '[{"foreach": true}]'),
    ],
)
def test_options_of_another_optimizer_are_refused_and_nothing_changes(options):
    shard = one()
    with pytest.raises(InvalidArgumentError, match="expected options of the 1 groups of the opt"):
        shard.check([], options)
    assert shard._optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("betas", ["[0.9]", "[0.9, null]", "0.9", "[0.9, 0.9, 0.9]"])
def test_a_tuple_of_another_length_is_refused(betas):
    (shard,) = shards_of(MAKERS["adam"], 1)
    with pytest.raises(InvalidArgumentError, match="expected options of the 2 groups"):
        shard.check([], f'[{{"betas": {betas}}}, {{}}]')


def test_options_without_an_optimizer_are_refused():
    with pytest.raises(InvalidArgumentError, match="of the 0 groups"):
        DenseShard({}, None, 0, 1).check([], '[{"lr": 1}]')


def test_readers_of_a_version_share_copies_that_never_change():
    shard = one()
    version, first = shard.read(-1)
    assert shard.read(-1)[1] is first
    assert shard.read(version) == (0, [])
    shard.step([("w", torch.ones(2))], "")
    assert first[0][1].tolist() == [1.0, 1.0]
    assert shard.read(version)[1][0][1].tolist() == [0.5, 0.5]


def test_a_reader_never_sees_half_a_step():
    weights = {n: torch.nn.Parameter(torch.zeros(1000)) for n in ("a", "b")}
    shard = DenseShard(weights, torch.optim.SGD(weights.values(), 1.0), 0, 1)
    ones = [(name, -torch.ones(1000)) for name in weights]
    writer = threading.Thread(target=lambda: [shard.step(ones, "") for _ in range(200)])
    writer.start()
    while writer.is_alive():
        version, values = shard.read(-1)
        assert all((value == version).all() for _, value in values)
    writer.join()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_shard_that_is_restored_goes_on_bit_for_bit(make):
    (whole,), (half,), (rest,) = (shards_of(make, 1) for _ in range(3))
    for number in range(2):
        step(whole, gradients(number))
        step(half, gradients(number))
    state = half.export()
    step(half, gradients(9))  # the export is a copy
    rest.load(DenseState(*copy.deepcopy(tuple(state))))
    step(whole, gradients(2))
    assert step(rest, gradients(2)) == 3
    pairs = zip(whole.read(-1)[1], rest.read(-1)[1], strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_a_load_sets_the_options_of_the_next_step():
    shard = one()
    options = group_options(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.25))
    step(shard, {"w": torch.ones(2)}, options)
    shard.load(shard.export())
    shard._optimizer.param_groups[0]["lr"] = 9.0
    step(shard, {"w": torch.ones(2)}, options)
    assert shard.read(-1)[1][0][1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("values", "tree", "words"),
    [
        ([("x", torch.ones(2))], "{}", "a value of a parameter of this server"),
        ([("w", torch.zeros(2))], "5", "the state of an optimizer, got '5'"),
        ([("w", torch.zeros(2))], '{"w": 5}', "the state of an optimizer"),
        ([("w", torch.zeros(2))], '{"w": {"$tensor": "gone"}}', "the state of an optimizer"),
        ([("w", torch.zeros(2))], '{"w": {"m": {"$float": "x"}}}', "the state of an optimizer"),
    ],
)
def test_a_load_of_another_task_changes_nothing(values, tree, words):
    shard = one()
    with pytest.raises(InvalidArgumentError, match=words):
        shard.load(DenseState(7, values, tree, []))
    assert (shard.version, shard.read(-1)[1][0][1].tolist()) == (0, [1.0, 1.0])


def test_tied_parameters_have_one_name_and_frozen_ones_none():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    module[1].weight = module[0].weight
    frozen = module[1].bias
    optimizer = torch.optim.SGD([p for p in module.parameters() if p is not frozen], lr=0.1)
    assert list(trained_parameters(module, optimizer)) == ["0.weight", "0.bias"]
    assert trained_parameters(module, None) == {}


def test_the_description_names_parameters_and_groups():
    module = model()
    optimizer = MAKERS["momentum"](groups_of(module))
    lines = describe_dense(trained_parameters(module, optimizer), optimizer)
    assert lines[0] == "parameter 0.weight: float32 (8, 4)"
    assert lines[4:] == ["optimizer SGD", "group 0: 0.weight, 0.bias", "group 1: 1.weight, 1.bias"]
    assert describe_dense({}, None) == []
