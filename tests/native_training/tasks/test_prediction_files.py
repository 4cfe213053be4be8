import pytest
import torch

from monolith.errors import UnavailableError
from monolith.native_training.tasks.prediction_files import PredictionFile
from monolith.native_training.tasks.task_context import NativeTaskContext, with_ctx
from monolith.ops import Ragged

COLUMNS = {
    "uid": torch.tensor([7, 8]),
    "items": Ragged.from_lists([[1, 2], []]),
    "price": torch.tensor([[0.5], [2.0]]),
    "vec": torch.arange(4000).reshape(2, 2000),
}


def lines(file):
    return file.path.read_text().splitlines()


def test_a_line_has_fields_and_predictions(tmp_path):
    file = PredictionFile(str(tmp_path / "new"), "uid, items,price")
    file.prepare()
    file.write(COLUMNS, torch.tensor([[0.25], [0.75]]))
    assert lines(file) == ["7\t[1 2]\t0.5\t0.25", "8\t[]\t2.0\t0.75"]


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    text = r"^\[output_path\] expected a folder to write to, got .*; set params.output_path to anot"
    with pytest.raises(UnavailableError, match=text):
        PredictionFile(str(tmp_path / "file")).prepare()


def test_heads_are_sorted_by_name(tmp_path):
    file = PredictionFile(str(tmp_path), None, ",")
    file.write(COLUMNS, {"b": torch.tensor([1.0, 2.0]), "a": torch.tensor([3.0, 4.0])})
    file.write(COLUMNS, [torch.tensor([5]), torch.tensor([6])])
    assert lines(file) == ["3.0,1.0", "4.0,2.0", "5,6"]


def test_arrays_are_written_whole(tmp_path):
    file = PredictionFile(str(tmp_path), "vec", ",")
    file.write(COLUMNS, torch.ones(2, dtype=torch.bfloat16))
    first = lines(file)[0]
    assert first.split("]")[1] == ",1.0"
    assert first[1:].split("]")[0].split() == [str(n) for n in range(2000)]


def test_each_worker_has_its_file(tmp_path):
    with with_ctx(NativeTaskContext(num_workers=4, worker_index=3)):
        assert PredictionFile(str(tmp_path)).path == tmp_path / "part-00003"
        assert PredictionFile(str(tmp_path), name="eval").path == tmp_path / "eval-00003"


def test_a_field_that_is_no_column_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"columns of the batch \(uid, items, price, vec\), got 'x'"
    ):
        PredictionFile(str(tmp_path), "uid,x").write(COLUMNS, torch.ones(2))
    with pytest.raises(ValueError, match="zip"):
        PredictionFile(str(tmp_path), "uid").write(COLUMNS, torch.ones(3))
