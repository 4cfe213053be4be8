"""Task files: `ranker.py`, or `ranker.py:Ranker` where a file has several tasks."""

import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from monolith.cli.talk import fail
from monolith.errors import InvalidArgumentError, MonolithError, NotFoundError
from monolith.train import Task

__all__ = ["errors_of_task", "load_task_class"]


def load_task_class(place: str) -> type[Task]:
    """The task class in a file.

    Args:
        place: path of a Python file, with `:Class` behind it where the file has several tasks.

    Raises:
        NotFoundError: no such file, or no such class in it.
        InvalidArgumentError: the file cannot be run, or has no task, or several.
    """
    file, name = _parts(place)
    if not file.is_file():
        raise NotFoundError(
            f"[task file] expected a Python file, got none at {str(file)!r}; write one with: "
            f"monolith new {file.name if file.suffix == '.py' else 'ranker.py'}"
        )
    if file.suffix != ".py":
        raise InvalidArgumentError(f"[task file] expected a file that ends in .py, got {file}")
    found = _tasks_of(_run(file))
    names = ", ".join(found)
    if name:
        if name not in found:
            raise NotFoundError(
                f"[task file] expected one of the tasks {names or 'of the file'}, got {name!r} "
                f"({file})"
            )
        return found[name]
    if not found:
        raise InvalidArgumentError(
            f"[task file] expected a class that derives from monolith.Task, got none in {file}"
        )
    if len(found) > 1:
        raise InvalidArgumentError(
            f"[task file] expected one task, got {names} in {file}; choose one: "
            f"{file}:{next(iter(found))}"
        )
    return next(iter(found.values()))


@contextmanager
def errors_of_task(place: str, *, with_traceback: bool = False) -> Iterator[None]:
    """End the program with one line for an error inside, and the line of the file it comes from.

    Args:
        place: as `load_task_class` takes it.
        with_traceback: print the whole traceback before.
    """
    try:
        yield
    except Exception as error:
        if with_traceback:
            traceback.print_exception(error)
        text = _text(error)
        frames = _frames(error, _parts(place)[0])
        if frames:
            last = frames[-1]
            text += f"\n  {last.filename}, line {last.lineno}, in {last.name}: {last.line}"
        if not with_traceback and (frames or not _is_told(error)):
            text += f"\n  the whole traceback: monolith train {place} --traceback"
        fail(text)


def _is_told(error: Exception) -> bool:
    """Whether an error has a text that was written for readers of the command line."""
    return isinstance(error, MonolithError | OSError) or str(error).startswith("[")


def _text(error: Exception) -> str:
    """A KeyError shows its text in quotes; it is told without them."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    is_told = _is_told(error) or text.startswith("[")
    return text if is_told else f"{type(error).__name__}: {text}"


def _parts(place: str) -> tuple[Path, str]:
    """File and class; the class is empty where none is named."""
    path, _, name = place.partition(".py:")
    return Path(f"{path}.py" if name else path), name


def _frames(error: Exception, file: Path) -> list[traceback.FrameSummary]:
    """Calls of the file that an error came through, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if Path(frame.filename).resolve() == file.resolve()]


def _run(file: Path) -> ModuleType:
    """The file as a module; what lies beside it can be imported there, as with `python file`."""
    name = f"monolith_task_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InvalidArgumentError(
            f"[task file] expected {file} to run, got {_described(error, file)}"
        ) from error
    return module


def _described(error: Exception, file: Path) -> str:
    """An error with the line of the file that it comes from."""
    lines = [frame.lineno for frame in _frames(error, file)]
    number = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    text = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    if number is None:
        return text
    linecache.checkcache(str(file))
    return f"{text}\n  line {number}: {linecache.getline(str(file), number).strip()}"


def _tasks_of(module: ModuleType) -> dict[str, type[Task]]:
    """Classes of the file itself that can be made; others were imported."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    }
