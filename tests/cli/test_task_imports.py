from pathlib import Path

import pytest

from monolith.cli.tasks.task_file import load_task_class
from monolith.cli.tasks.task_imports import MOVED, PAGE, TaskImportError, check_imports
from monolith.errors import NotFoundError
from tests.cli.run import run
from tests.meta.tree import ROOT


def refusal(tmp_path, source):
    path = tmp_path / "ported.py"
    path.write_text(source)
    with pytest.raises(TaskImportError) as caught:
        check_imports(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "better"),
    [
        ("import tensorflow as tf", "'import torch'"),
        ("import tensorflow.compat.v1 as tf", "'import torch'"),
        ("from tensorflow.keras import layers", "'from torch import nn'"),
        ("from tensorflow import keras", "'from torch import nn'"),
        ("from monolith.core import model_registry", "'from monolith import model_registry'"),
        (
            "from monolith.native_training.native_model import MonolithModel",
            "'from monolith.base_model import MonolithModel'",
        ),
        ("import monolith.core.model_registry", "'from monolith import model_registry'"),
        ("from idl.matrix.proto.example_pb2 import Example", "import RecordParser'"),
    ],
)
def test_an_import_that_is_not_there_has_one_in_its_place(tmp_path, line, better):
    text = refusal(tmp_path, f"import math\n\n{line}\nimport monolith.base_model\n")
    assert repr(line) in text
    assert "line 3; change it to" in text
    assert better in text
    assert "\n" not in text


def test_a_decorator_that_is_not_needed_is_removed(tmp_path):
    line = "from monolith.native_training.monolith_export import monolith_export"
    assert "line 1; remove the line; see" in refusal(tmp_path, line)


def test_a_name_that_a_module_lacks_names_the_nearest(tmp_path):
    line = "from monolith.native_training.entry import AdagradOptimzer"
    assert "entry has 'AdagradOptimizer'" in refusal(tmp_path, line)


def test_a_module_without_a_neighbour_is_told(tmp_path):
    assert "no 'monolith.nowhere' here" in refusal(tmp_path, "import monolith.nowhere")
    text = refusal(tmp_path, "from monolith.native_training.entry import Qqqq")
    assert "entry has no 'Qqqq'" in text


def test_a_file_whose_neighbour_is_of_the_reference_system_is_of_it_too(tmp_path):
    (tmp_path / "common.py").write_text("import monolith.base_model\n")
    text = refusal(tmp_path, "import tensorflow as tf\nimport common\n")
    assert f"{tmp_path / 'ported.py'}, line 1; change it to 'import torch'" in text


def test_imports_in_functions_and_in_files_of_the_folder_count(tmp_path):
    (tmp_path / "common.py").write_text("def f():\n    import tensorflow\n")
    assert f"{tmp_path / 'common.py'}, line 2" in refusal(
        tmp_path, "from monolith import core\nimport common"
    )


def test_files_of_a_package_count(tmp_path):
    (tmp_path / "pack" / "deep").mkdir(parents=True)
    (tmp_path / "pack" / "deep" / "__init__.py").write_text("from . import first\n")
    (tmp_path / "pack" / "deep" / "first.py").write_text("from ..second import x\n")
    (tmp_path / "pack" / "second.py").write_text("x = 1\nimport idl\n")
    assert f"{tmp_path}/pack/second.py, line 2" in refusal(tmp_path, "from pack import deep")


def test_a_relative_import_of_a_file_in_the_working_directory_is_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ported.py").write_text("from . import second\n")
    Path("second.py").write_text("import monolith.base_model\nimport tensorflow as tf\n")
    with pytest.raises(TaskImportError, match=r"second\.py, line 2; change it to 'import torch'"):
        check_imports(Path("ported.py"))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text("raise RuntimeError('it was run')")
    monkeypatch.syspath_prepend(tmp_path)


def test_an_installed_tensorflow_is_refused_too(tmp_path, installed):
    text = refusal(tmp_path, "import tensorflow as tf\nfrom monolith import base_model\n")
    assert "line 1; change it to 'import torch'" in text


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\nimport monolith as ml\n",  # a task of ours that reads with it
        "from monolith.nn import NoSuchModule\n",  # the run tells
        "try:\n    import tensorflow.nothing\nexcept (ValueError, ImportError):\n    pass\n"
        "import monolith.base_model\n",
        "try:\n    import idl\nexcept:\n    pass\n",
        "if TYPE_CHECKING:\n    import idl\n",
        "from . import tensorflow\nfrom monolith.base_model import *\n",
        "import monolith.native_training.entry as entry\nclass :\n",  # the run tells the line
    ],
)
def test_other_imports_are_allowed(tmp_path, installed, source):
    path = tmp_path / "ported.py"
    path.write_text(source)
    check_imports(path)


@pytest.mark.parametrize("module", MOVED)
def test_the_table_has_names_that_are_not_there_and_lines_that_run(module, tmp_path):
    text = refusal(tmp_path, f"from {module} import no_such_name")
    assert PAGE in text
    exec(MOVED[module] or "", {})


def test_the_page_is_there():
    assert (ROOT / PAGE).is_file()


def test_the_command_ends_with_one_line_and_status_2(tmp_path, capsys, monkeypatch):
    path = tmp_path / "ported.py"
    path.write_text("import tensorflow as tf\nfrom monolith import base_model\n")
    result = run(capsys, monkeypatch, "train", path)
    (line,) = result.err.splitlines()
    assert (result.status, result.out) == (2, "")
    assert line.startswith("error: [task file] expected an import that is there, got 'import tens")


FFM = """
from monolith.model_registry import RegisterSingleTaskModel, SingleTaskModelParams
from monolith.native_training.model import TestFFMModel

class Mine(TestFFMModel): pass

@RegisterSingleTaskModel
class Small(SingleTaskModelParams):
    def task(self):
        params = Mine.params()
        params.train.per_replica_batch_size = 16
        return params
"""


def test_parameters_of_a_file_stand_for_their_task(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(FFM)
    task = load_task_class(str(path))
    assert task.__name__ == "Mine"
    assert task.params().train.per_replica_batch_size == 16


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"ffm_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FFM)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_key_names_parameters_or_a_task(module):
    assert load_task_class(f"{module}.Small").params().train.per_replica_batch_size == 16
    assert load_task_class(f"{module}.Mine").params().train.per_replica_batch_size is None


def test_the_module_of_a_key_is_checked_with_its_package(tmp_path, monkeypatch):
    folder = tmp_path / f"pack_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "task.py").write_text(f"from {folder.name}.common import x\n")
    (folder / "common.py").write_text("import idl\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaskImportError, match=r"got 'import idl' in .*common.py, line 1"):
        load_task_class(f"{folder.name}.task.Clicks")


def test_a_key_that_names_nothing_is_refused(module):
    with pytest.raises(NotFoundError, match="no module 'no_such'"):
        load_task_class("no_such.Small")
    with pytest.raises(NotFoundError, match=r"expected a task or SingleTaskModelParams, got None"):
        load_task_class(f"{module}.Large")
