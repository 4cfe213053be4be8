import sys

import pytest

from monolith.model_registry import GetParams, RegisterSingleTaskModel, SingleTaskModelParams
from monolith.native_training.native_task import NativeTask
from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.train import Task

MODULE = """
from monolith.model_registry import RegisterSingleTaskModel, SingleTaskModelParams
from monolith.native_training.model import TestFFMModel

@RegisterSingleTaskModel
class Small(SingleTaskModelParams):
    def task(self):
        params = TestFFMModel.params()
        params.train.per_replica_batch_size = 16
        return params
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `<name>.params.ffm` with the class `Small`."""
    folder = tmp_path / f"pack_{tmp_path.name}" / "params"
    folder.mkdir(parents=True)
    (folder / "ffm.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return folder.parent.name


@RegisterSingleTaskModel
class Known(SingleTaskModelParams):
    def task(self):
        return NativeTask.params()


def test_a_key_imports_its_module_and_gives_the_parameters(package):
    assert GetParams(f"{package}.params.ffm.Small").train.per_replica_batch_size == 16


def test_a_short_key_has_no_params_and_no_tasks(package):
    GetParams(f"{package}.params.ffm.Small")
    assert GetParams(f"{package}.ffm.Small").train.per_replica_batch_size == 16


def test_a_second_class_of_a_key_is_refused():
    with pytest.raises(ValueError, match=r"^Duplicate model registered for key .*Known$"):
        RegisterSingleTaskModel(Known)


def test_a_module_that_is_loaded_again_replaces_its_classes(package):
    key = f"{package}.params.ffm.Small"
    GetParams(key)
    first = sys.modules.pop(f"{package}.params.ffm").Small
    __import__(f"{package}.params.ffm")
    assert sys.modules[f"{package}.params.ffm"].Small is not first


@pytest.mark.parametrize("value", [NativeTask, 3])
def test_only_single_task_params_are_registered(value):
    with pytest.raises(TypeError, match="expected a subclass of SingleTaskModelParams, got"):
        RegisterSingleTaskModel(value)


def test_a_key_has_a_module():
    with pytest.raises(ValueError, match=r"^Invalid model name Small$"):
        GetParams("Small")


def test_a_module_that_is_not_there_is_told():
    with pytest.raises(LookupError, match=r"expected a module at 'no_such.ffm' .*No module named"):
        GetParams("no_such.ffm.Small")


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(LookupError, match=r"got '.*Knwn'; did you mean '.*Known'\?"):
        GetParams(f"{__name__}.Knwn")


def test_the_class_of_a_task_has_the_registered_parameters(package):
    key = f"{package}.params.ffm"
    __import__(key)
    cls = sys.modules[key].Small().task_class()
    assert cls.params().instantiate().p.train.per_replica_batch_size == 16
    assert cls.params().cls is cls


@pytest.mark.parametrize("params", [None, 3, InstantiableParams(int), InstantiableParams(Task)])
def test_a_task_method_that_returns_no_parameters_is_refused(params):
    class Wrong(SingleTaskModelParams):
        def task(self):
            return params

    with pytest.raises(TypeError, match="expected the parameters of a NativeTask, got"):
        Wrong().task_class()
