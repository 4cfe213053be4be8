"""Two ranks that share a CUDA device, with tables in main memory."""

import datetime

import pytest
import torch
import torch.distributed as dist

from monolith.cluster.ranks.channel import CardChannel
from monolith.cluster.ranks.dense_sync import DenseSync
from monolith.cluster.ranks.rank_group import _card_of, group_of_cards
from monolith.cluster.ranks.rank_watch import RankWatch
from monolith.train import Trainer, TrainSettings
from tests.train.device_runs import launch
from tests.train.ranks.device_ranks import BATCHES, assert_close, check_resumed, fit_two
from tests.train.ranks.rank_tasks import largest_difference
from tests.train.roles import job_tasks
from tests.train.roles.job_tasks import Counted, JobSettings, write_samples

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]
CUDA = {"device": "cuda:0"}
TOLERANCE = 1e-3


@pytest.mark.parametrize(
    "options",
    [{}, {"clip_norm": 0.1}, {"accumulate": 2}],
    ids=["plain", "clipped", "accumulated"],
)
def test_two_ranks_on_one_card_agree_with_ranks_on_the_cpu(options):
    words = []
    found = fit_two(
        TrainSettings(**options, **CUDA), before=lambda t: words.append(t.sync.device_words)
    )
    assert_close(found, fit_two(TrainSettings(**options)), TOLERANCE)
    assert all("on cuda:0; dense gradients of 2 ranks go by gloo" in text for text in words)


def test_two_ranks_on_one_card_read_ahead_and_push():
    found = fit_two(TrainSettings(prefetch=2, push=1, **CUDA))
    assert [result.num_samples for result, *_ in found] == [8 * len(BATCHES)] * 2
    assert largest_difference(found[0][1], found[1][1]) == 0


@pytest.mark.parametrize(("first", "second"), [(CUDA, CUDA), (CUDA, {}), ({}, CUDA)])
def test_a_run_goes_on_after_a_checkpoint(tmp_path, first, second):
    check_resumed(tmp_path, first, second, TOLERANCE)


def test_gradients_are_added_up_over_nccl():
    store, limit = dist.HashStore(), datetime.timedelta(seconds=60)
    watch = RankWatch(store, 0, 1, is_host=True)
    try:
        group = group_of_cards(dist.PrefixStore("cards", store), 0, 1, limit)
        channel = CardChannel("cards", group, watch, (0, 1), 20.0)
        ours = [torch.nn.Parameter(torch.ones(n, device="cuda")) for n in (3, 2)]
        sync = DenseSync(channel, ours, 1)
        sync.broadcast(ours)
        for step in range(3):
            sync.wishes = [float(step)]
            sync.begin(holds_last=True)
            sum((step + 1) * parameter.sum() for parameter in ours).backward()
            assert sync.finish() == [float(step)]
            assert [p.grad.tolist() for p in ours] == [[step + 1.0] * 3, [step + 1.0] * 2]
            for parameter in ours:
                parameter.grad = None
    finally:
        watch.close()


def test_a_card_has_a_name_of_its_own():
    assert _card_of(torch.device("cuda", 0))
    assert _card_of(torch.device("cpu")) is None


@pytest.mark.dist
def test_launched_ranks_share_the_card(tmp_path):
    pytest.importorskip("zmq")
    data = write_samples(tmp_path / "samples.parquet", 160)
    words = [f"{job_tasks.__file__}:Counted", "--ranks", "2", "--data", data, "--device", "cuda"]
    words += ["--checkpoints", str(tmp_path / "saved"), "--run", str(tmp_path / "run")]
    launch(*words, "--set", "train.threads=1")
    log = (tmp_path / "run" / "logs" / "rank-0.log").read_text()
    assert "dense gradients of 2 ranks go by gloo through main memory" in log
    with Trainer(Counted(JobSettings(data={"train": data}))) as saved:
        saved.restore(tmp_path / "saved")
        assert len(saved.features.tables["sample"]) == 160
