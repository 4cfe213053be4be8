"""Ranks whose dense part is on a device; a transfer to the CPU stands for the device."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from monolith.cluster.ranks import rank_group
from monolith.cluster.ranks.channel import CardChannel
from monolith.errors import InvalidArgumentError, NonFiniteLossError, UnavailableError
from monolith.ops.devices import DeviceTransfer
from monolith.train import TrainSettings, trainer
from monolith.train.ranks.rank_sync import settings_of_rank
from tests.cluster.ranks.rank_threads import run_ranks
from tests.train.device_runs import apart, copies  # noqa: F401 -- a fixture
from tests.train.ranks.device_ranks import BATCHES, assert_close, check_resumed, fit_two
from tests.train.ranks.rank_tasks import fit_rank, one_batch, task_of

SETTINGS = {
    "plain": {},
    "ahead": {"prefetch": 2, "push": 1},
    "clipped": {"clip_norm": 0.1},
    "accumulated": {"accumulate": 2},
}


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
def test_ranks_on_a_device_equal_those_on_the_cpu(options, request):
    batches = apart(BATCHES) if options.get("prefetch") else BATCHES
    expected = fit_two(TrainSettings(**options), batches)
    request.getfixturevalue("copies")
    assert_close(fit_two(TrainSettings(**options), batches), expected, 1e-6)


@pytest.mark.usefixtures("copies")
def test_a_rank_without_data_takes_part():
    found = fit_two(TrainSettings(), BATCHES[:3])
    assert [result.num_steps for result, *_ in found] == [2, 2]
    assert [result.num_samples for result, *_ in found] == [24, 24]


@pytest.mark.usefixtures("copies")
def test_a_run_goes_on_after_a_checkpoint(tmp_path):
    check_resumed(tmp_path, {}, {}, 1e-6)


@pytest.mark.usefixtures("copies")
def test_no_rank_makes_the_step_in_which_a_loss_of_one_is_not_finite():
    batches = [one_batch(seed) for seed in range(4)]
    batches[3].dense["x"][0] = math.nan  # the second batch of rank 1
    ended = {}

    def body(group):
        def before(trainer):
            ended[group.rank] = trainer

        try:
            fit_rank(group, task_of(batches), before=before)
        except (NonFiniteLossError, UnavailableError) as error:
            return type(error), ended[group.rank].state.step, _sum_of(ended[group.rank].model)

    (first, step, total), (second, *rest) = run_ranks(2, body)
    assert (first, second) == (UnavailableError, NonFiniteLossError)
    assert [step, total] == rest
    assert step == 1
    assert math.isfinite(total)


def _sum_of(model):
    return sum(float(parameter.detach().sum()) for parameter in model.parameters())


@pytest.mark.parametrize(
    ("device", "num_cards", "chosen"),
    [("cuda", 2, "cuda:1"), ("cuda", 8, "cuda:3"), ("cuda:0", 8, "cuda:0"), ("cpu", 0, "cpu")],
)
def test_ranks_of_a_machine_take_its_cards_in_turn(monkeypatch, device, num_cards, chosen):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_cards)
    ranks = SimpleNamespace(local_rank=3, group=SimpleNamespace(rank=3))
    assert settings_of_rank(TrainSettings(device=device), ranks).device == chosen


def test_a_machine_without_cards_is_named():
    with pytest.raises(ValueError, match=r"expected one of 0 CUDA devices .*, got 'cuda'"):
        run_ranks(1, lambda group: fit_rank(group, task_of(BATCHES), TrainSettings(device="cuda")))


def test_ranks_on_devices_of_different_kinds_are_refused(monkeypatch):
    cpu = DeviceTransfer(torch.device("cpu"))
    monkeypatch.setattr(trainer, "transfer_to", lambda device: cpu)

    def body(group):
        settings = TrainSettings(device=("cpu", "cuda")[group.rank])
        return fit_rank(group, task_of(BATCHES), settings)

    with pytest.raises(InvalidArgumentError, match="'device cpu' in rank 0 and 'device cuda' in"):
        run_ranks(2, body)


@pytest.fixture
def cards(monkeypatch):
    """Let every rank have a card of its own, with gloo in the place of nccl."""
    numbers = itertools.count()
    monkeypatch.setattr(rank_group, "_card_of", lambda device: f"card {next(numbers)}")
    monkeypatch.setattr(rank_group, "group_of_cards", dist.ProcessGroupGloo)


@pytest.mark.usefixtures("cards", "copies")
def test_dense_gradients_go_from_card_to_card_where_each_rank_has_its_own():
    kinds, words = [], []

    def before(trainer):
        kinds.append(type(trainer.sync.group.dense))
        words.append(trainer.sync.device_words)

    expected = fit_two(TrainSettings())
    assert_close(fit_two(TrainSettings(), before=before), expected, 1e-6)
    assert kinds == [CardChannel] * 2
    assert sorted(words) == [
        f"dense part of rank {rank} on cpu; dense gradients of 2 ranks go by nccl from card to card"
        for rank in range(2)
    ]


@pytest.mark.usefixtures("copies")
def test_ranks_that_share_a_card_say_that_gradients_go_through_main_memory():
    words = []
    fit_two(TrainSettings(), BATCHES[:2], lambda trainer: words.append(trainer.sync.device_words))
    assert all("2 ranks go by gloo through main memory" in text for text in words)


@pytest.mark.usefixtures("cards")
def test_a_card_that_does_not_end_a_collective_is_given_up():
    def body(group):
        group.use_cards(torch.device("cpu"))
        if group.rank == 0:
            return group.dense.begin_all_reduce(torch.ones(1))()
        return group.control.gather(None)

    options = rank_group.RankOptions(start_seconds=20, wait_seconds=1)
    with pytest.raises(UnavailableError, match="rank 1 did not come to collective 1 of cards"):
        run_ranks(2, body, options)
