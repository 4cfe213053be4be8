import os
import pty
import re
import subprocess
import sys

import pytest
import torch

from examples import demo
from tests.meta.tree import ROOT

pytestmark = pytest.mark.thorough

DEMO = str(ROOT / "examples" / "demo.py")


def run(command, **options):
    return subprocess.run(command, text=True, timeout=300, cwd=ROOT, **options)


def run_demo(*arguments):
    return run([sys.executable, DEMO, *arguments], capture_output=True)


def train(trainee, steps):
    return demo.train(trainee, steps, demo.SEED, lambda run: None)


def without_times(text):
    return re.sub(r" *[\d,]+ samples/s|Done in \d+ s|Figure: .*", "", text)


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "new" / "demo.png"


@pytest.fixture(scope="module")
def output(figure):
    result = run_demo("--days", "1", "--figure", str(figure))
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
class TestModel:
    def test_it_learns(self):
        scores = train(demo.Ours(), 36).scores
        assert sum(scores[-6:]) / 6 > sum(scores[:6]) / 6 + 0.1

    def test_the_hashed_one_starts_from_the_same_layers(self):
        torch.manual_seed(0)
        ours = demo.Ours()
        torch.manual_seed(0)
        hashed = demo.Hashed(1, ours.table_bytes())
        for name, weights in ours.model.mlp.state_dict().items():
            assert torch.equal(weights, hashed.model.mlp.state_dict()[name])

    def test_hashed_rows_fill_their_share_of_the_memory(self):
        hashed = demo.Hashed(0.25, dict.fromkeys(demo.FEATURES, 400 * demo.ROW_BYTES))
        assert hashed.num_rows() == 100 * len(demo.FEATURES)
        bags = [bag.weight.nbytes for bag in hashed.model.bags.values()]
        assert [2 * n for n in bags] == list(hashed.table_bytes().values())

    def test_hashed_ids_may_be_any_int64(self):
        bag = demo.HashedBag(3)
        ids = torch.tensor([-(1 << 63), -1, 5, (1 << 63) - 1])
        assert torch.equal(bag(ids, torch.arange(4)), bag.weight[ids % 3])

    def test_rows_grow_and_expire(self, monkeypatch):
        monkeypatch.setattr(demo, "EXPIRY_DAYS", 1)
        ours = demo.Ours()
        run = train(ours, 36)
        assert run.num_rows[:12] == sorted(run.num_rows[:12])
        assert run.num_expired[:12] == [0] * 12
        assert run.num_expired[-1] > 1000
        made = sum(bag.table.stats()["num_inserted"] for bag in ours.bags.values())
        assert run.num_rows[-1] == made - run.num_expired[-1]

    def test_auc_is_the_share_of_pairs_in_order(self):
        scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0.0, 0, 1, 1])
        assert demo.auc(scores, labels) == 0.75


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--days", "0"], "expected --days of at least 1, got 0"),
        (["--seed", "-1"], "expected --seed of at least 0, got -1"),
        (["--memory", "1", "0"], "expected --memory above 0, got 0"),
        (["--figure", DEMO + "/a.png"], "expected --figure where a file can be made"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        demo.parse(arguments)
    assert f"error: {message}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.dist
class TestCommand:
    def test_it_prints_loss_score_rows_and_speed(self, output):
        day = r"day +1  loss 0\.\d+  AUC 0\.\d+ +[\d,]+ rows +[\d,]+ expired +[\d,]+ samples/s"
        assert len(re.findall(day, output)) == 3

    @pytest.mark.parametrize(
        "name", ["a row per id", "hashed, 1x memory", "hashed, 0.25x memory", "best reachable"]
    )
    def test_the_summary_compares(self, output, name):
        assert re.search(rf"^  {name} +0\.\d{{4}} ", output, re.M)

    def test_it_ends_with_the_figure_and_the_next_command(self, output, figure):
        *_, done, following = output.splitlines()
        assert done.endswith(f"Figure: {figure}")
        assert following == "Next: .venv/bin/python examples/01_drop_in.py"

    def test_the_figure_is_a_png_and_nothing_lies_beside_it(self, output, figure):
        assert figure.read_bytes().startswith(b"\x89PNG")
        assert os.listdir(figure.parent) == [figure.name]

    def test_two_runs_are_equal(self, output, tmp_path):
        again = run_demo("--days", "1", "--figure", str(tmp_path / "demo.png"))
        assert without_times(again.stdout) == without_times(output)

    def test_a_terminal_gets_a_progress_bar(self, tmp_path):
        reader, writer = pty.openpty()
        command = [sys.executable, DEMO, "--days", "1", "--memory", "--figure", str(tmp_path / "d")]
        with subprocess.Popen(
            command, stdout=writer, cwd=ROOT, env={**os.environ, "TERM": "xterm"}
        ) as process:
            os.close(writer)
            shown = b""
            try:
                while chunk := os.read(reader, 65536):
                    shown += chunk
            except OSError:  # how Linux says that the other end is closed
                pass
            finally:
                os.close(reader)
        assert process.returncode == 0
        assert "━" in shown.decode()

    def test_an_interrupted_run_ends_with_one_line(self, tmp_path):
        result = run([sys.executable, "-c", INTERRUPTED, str(tmp_path)], capture_output=True)
        assert result.returncode == 130
        assert result.stderr == "Stopped before the end; nothing was saved.\n"
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("package", ["matplotlib", "rich"])
    def test_a_missing_package_is_named_with_its_extra(self, package):
        code = f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_path({DEMO!r})"
        result = run([sys.executable, "-c", code], capture_output=True)
        assert result.returncode == 1
        message = f"[demo] expected {package} to be installed; pip install 'monolith-torch[demo]'\n"
        assert result.stderr == message


INTERRUPTED = f"""
import runpy, signal, sys
sys.path.insert(0, ".")
from examples.clicks import Clicks
usual, drawn = Clicks.__next__, []

def interrupt(clicks):
    drawn.append(0)
    return usual(clicks) if len(drawn) < 3 else signal.raise_signal(signal.SIGINT)

Clicks.__next__ = interrupt
sys.argv = ["demo.py", "--figure", sys.argv[1] + "/demo.png"]
runpy.run_path({DEMO!r}, run_name="__main__")
"""
