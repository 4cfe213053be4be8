"""State that a module would share between its users, and imports it must not do when loaded."""

import ast
import re
import sys
from importlib.metadata import requires

from tests.meta.tree import top_level

MUTABLE_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_TYPES = re.compile(
    "Barrier|ChainMap|Condition|ContextVar|Counter|Event|Lock|OrderedDict|Queue|QueueHandles|RLock|"
    "Semaphore|SimpleNamespace|SimpleQueue|WeakKeyDictionary|WeakSet|WeakValueDictionary|bytearray|count|"
    "defaultdict|deque|dict|empty|full|iter|list|local|ones|open|set|tensor|zeros"
)
ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})
CACHES = frozenset({"cache", "lru_cache"})


def mutable_state(tree):
    """Yields the name of each module-level value that can change, and of each cached function."""
    for node in top_level(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [ast.unparse(target) for target in targets]
            if is_mutable(node.value) and names != ["__all__"]:
                yield from names
        elif CACHES & {called_name(decorator) for decorator in getattr(node, "decorator_list", ())}:
            yield node.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def is_mutable(value):
    called = called_name(value) if isinstance(value, ast.Call) else ""
    return isinstance(value, MUTABLE_LITERALS) or bool(MUTABLE_TYPES.fullmatch(called))


def called_name(node):
    """`lru_cache` for lru_cache, functools.lru_cache and functools.lru_cache(...)."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):  # dict[str, int]()
        node = node.value
    return getattr(node, "attr", getattr(node, "id", ""))


def environment_uses(tree):
    """Yields the line of each read or write of the environment."""
    for node in ast.walk(tree):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if {getattr(node, "attr", ""), *imported} & ENVIRONMENT:
            yield node.lineno


def required_packages():
    """Import names that are always there: the standard library and the core's dependencies."""
    core = [line for line in requires("monolith-torch") or [] if "extra ==" not in line]
    return {"monolith", *sys.stdlib_module_names, *(re.match(r"\w+", line)[0] for line in core)}


def optional_imports(tree, required):
    """Yields the top-level names of packages that loading the module would need."""
    for node in top_level(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        else:
            continue
        yield from (top for name in names if (top := name.split(".")[0]) not in required)
