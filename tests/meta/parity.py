"""What docs/parity.md lists: acceptance ids, which tests name too, paths of files, and names."""

import ast
import importlib
import re


def marked_ids(source):
    """The ids that the `pytest.mark.req` of a test file name."""
    if "mark.req" not in source:  # most files have none, and parsing takes long
        return set()
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    marks = (call for call in calls if getattr(call.func, "attr", "") == "req")
    return {ast.literal_eval(argument) for mark in marks for argument in mark.args}


def code(text):
    """The words of a text that are set as code."""
    return re.findall(r"`([^`]+)`", text)


def listed_paths(text):
    """Paths of files and folders of the project."""
    return [word for word in code(text) if re.match(r"(src|tests|native|docs|benchmarks)/", word)]


def listed_names(text):
    """Dotted names below `monolith.`, and names that follow a module and a colon as its own."""
    name = r"`(monolith(?:\.\w+)+)`"
    lists = re.findall(name + r": ((?:`[\w.]+`(?:, | and )?)+)", text)
    inner = {f"{module}.{word}" for module, words in lists for word in code(words)}
    return {*re.findall(name, text)} | {word for word in inner if ".monolith" not in word}


def reference_modules(text):
    """Modules of the reference system in the first cells of the tables, without its tests."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    paths = {word for cell in cells for word in code(cell) if word.endswith(".py")}
    tests = ("_test.py", "_test_binary.py")
    return {f"monolith.{path[:-3].replace('/', '.')}" for path in paths if not path.endswith(tests)}


def is_there(name):
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False
