import pytest

from monolith.cli.tasks.task_file import load_task_class
from monolith.errors import InvalidArgumentError, NotFoundError

TASK = """
import monolith as ml

class {name}(ml.Task):
    features = [ml.Feature("user", dim=1)]
    def source(self, mode): return []
    def build(self): return None
    def loss(self, model, inputs, batch): return None
"""


def write(path, *names, more=""):
    path.write_text("".join(TASK.format(name=name) for name in names) + more)
    return str(path)


def test_the_only_task_of_a_file_needs_no_name(tmp_path):
    assert load_task_class(write(tmp_path / "clicks.py", "Clicks")).__name__ == "Clicks"


def test_a_name_chooses_among_several(tmp_path):
    path = write(tmp_path / "many.py", "First", "Second")
    assert load_task_class(f"{path}:Second").__name__ == "Second"


def test_several_tasks_without_a_name_are_listed(tmp_path):
    path = write(tmp_path / "many.py", "First", "Second")
    with pytest.raises(
        InvalidArgumentError, match=r"got First, Second in .*; choose one: .*:First"
    ):
        load_task_class(path)


def test_a_wrong_name_is_told_the_right_ones(tmp_path):
    path = write(tmp_path / "one.py", "First")
    with pytest.raises(NotFoundError, match=r"one of the tasks First, got 'Other'"):
        load_task_class(f"{path}:Other")


def test_imported_and_abstract_tasks_do_not_count(tmp_path):
    path = write(tmp_path / "one.py", "First", more="\nclass Base(ml.Task): pass\nTask = ml.Task\n")
    assert load_task_class(path).__name__ == "First"


def test_a_file_without_a_task_is_refused(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    with pytest.raises(InvalidArgumentError, match=r"derives from monolith.Task, got none in"):
        load_task_class(str(path))


UNFINISHED = """
import monolith as ml

class Half(ml.Task):
    def source(self, mode): return []
"""


@pytest.mark.parametrize("name", ["", ":Half"])
def test_a_task_that_lacks_methods_is_told_which(tmp_path, name):
    path = tmp_path / "half.py"
    path.write_text(UNFINISHED)
    with pytest.raises(
        InvalidArgumentError, match=r"got Half without build, loss in .*half.py; def"
    ):
        load_task_class(f"{path}{name}")


def test_a_missing_file_names_the_command_that_writes_one(tmp_path):
    with pytest.raises(NotFoundError, match=r"got none at '.*ads.py'; .* monolith new ads.py"):
        load_task_class(str(tmp_path / "ads.py"))


def test_a_file_that_is_no_python_is_refused(tmp_path):
    path = tmp_path / "task.txt"
    path.write_text("")
    with pytest.raises(InvalidArgumentError, match=r"ends in .py, got .*task.txt"):
        load_task_class(str(path))


def test_a_broken_file_is_told_by_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import math\nx = math.nothing\n")
    message = r"got AttributeError: .*nothing.*\n  line 2: x = math.nothing"
    with pytest.raises(InvalidArgumentError, match=message):
        load_task_class(str(path))


@pytest.mark.parametrize("code", ["0", ""])
def test_a_file_that_ends_the_program_is_refused(tmp_path, code):
    path = tmp_path / "ended.py"
    path.write_text(f"import sys\nsys.exit({code})\n")
    with pytest.raises(
        InvalidArgumentError, match=r"ended.py to run, got SystemExit: .*\n  line 2:"
    ):
        load_task_class(str(path))


def test_a_syntax_error_is_told_by_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("x = 1\nclass :\n")
    with pytest.raises(InvalidArgumentError, match=r"got SyntaxError: .*\n  line 2: class :"):
        load_task_class(str(path))


def test_an_error_below_the_file_has_the_line_of_the_file(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import monolith as ml\n\nml.Feature('user')\n")
    with pytest.raises(InvalidArgumentError, match=r"either dim or slices.*\n  line 3: ml.Feature"):
        load_task_class(str(path))


def test_what_lies_beside_the_file_can_be_imported(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "beside_the_task.py").write_text("NAME = 'user'\n")
    path = write(tmp_path / "one.py", "First", more="\nfrom beside_the_task import NAME\n")
    assert load_task_class(path).__name__ == "First"
