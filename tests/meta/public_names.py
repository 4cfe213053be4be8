"""Names that users of the reference system import or patch, and what is there of each.

`public_names.txt` lists the names. Kinds follow from their form.
"""

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType


def _kind_by_form(name):
    if "." in name:
        return "method"
    if not re.search("[a-z]", name):
        return "constant"
    return "class" if name.lstrip("_")[0].isupper() else "function"


def read_names(text):
    """Module -> name -> kind."""
    names, module = {}, {}
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.endswith(":"):
            module = names.setdefault(line[:-1], {})
        else:
            pairs = re.findall(r"([\w.]+)(?: \((\w+)\))?", line)
            module |= {name: kind or _kind_by_form(name) for name, kind in pairs}
    return names


PUBLIC_NAMES = read_names((Path(__file__).parent / "public_names.txt").read_text())


def kind_of(module, name):
    """What a module has under a name; None without it."""
    owner, _, member = name.rpartition(".")
    if owner:
        owner = getattr(module, owner, None)
        value = getattr(owner, member, None)
        if isinstance(value, property):
            return "property"
        return "method" if callable(value) and not isinstance(value, type) else None
    value = getattr(module, name, None)
    if value is None or isinstance(value, ModuleType):
        return None
    if isinstance(value, type):
        return "class"
    return "function" if callable(value) else "constant"


def find_module(name):
    """The module of this name; None where there is none."""
    try:
        is_there = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent
        return None
    return importlib.import_module(name) if is_there else None
