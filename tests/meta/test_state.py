import ast

import pytest

from tests.meta.state import environment_uses, mutable_state, optional_imports, required_packages
from tests.meta.tree import modules

# (module, name) -> why this state belongs to the process and not to an object.
ALLOWED: dict[tuple[str, str], str] = {
    (
        "monolith.native_training.optimizers.dense_updates",
        "_LOCK",
    ): "steps with use_locking run one after the other",
    (
        "monolith.native_training.saver.restore_override",
        "_lock",
    ): "one read of a state file at a time",
    (
        "monolith.native_training.saver.state_files",
        "_ckpt_state_cache_lock",
    ): "guards that cache",
    (
        "monolith.native_training.saver.state_files",
        "_ckpt_state_cache_map",
    ): "states of directories, by step",
    (
        "monolith.native_training.mlp_utils",
        "EXTRA_DSWORKERS",
    ): "data workers that live as long as the process",
    ("monolith.features.gradients", "_HANDLES"): "a handle is never used again",
    ("monolith.features.gradients", "_QUEUES"): "compiled graphs name tables by a number",
    ("monolith.optim.graph_step", "_HANDLES"): "a handle is never used again",
    ("monolith.optim.graph_step", "_OPTIMIZERS"): "compiled graphs name optimizers by a number",
    ("monolith.cluster.servers", "_PLACE"): "what `ps_device` selected, by thread and task",
    (
        "monolith.native_training.tables.touched_key_set",
        "_SETS",
    ): "touched key sets are shared by name",
    (
        "monolith.native_training.tables.touched_key_set",
        "_SETS_LOCK",
    ): "guards the names of these sets",
    (
        "monolith.native_training.data.feature_list",
        "_LISTS",
    ): "a file is parsed once for each path",
    (
        "monolith.native_training.data.feature_list",
        "_LISTS_LOCK",
    ): "guards these lists",
    (
        "monolith.native_training.data.utils",
        "_SLOTS",
    ): "features that were registered with a slot",
    (
        "monolith.native_training.data.utils",
        "_SLOTS_LOCK",
    ): "guards these slots",
    (
        "monolith.native_training.zk_utils",
        "_HOSTS",
    ): "a deployment sets its servers of ZooKeeper",
    (
        "monolith.native_training.zk_utils",
        "_HOSTS_IPV6",
    ): "the same by their IPv6 addresses",
    (
        "monolith.native_training.tasks.registry",
        "_KEYS",
    ): "classes register under their keys when they are imported",
    (
        "monolith.native_training.tasks.registry",
        "_KEYS_LOCK",
    ): "guards the keys",
    (
        "monolith.native_training.tasks.task_context",
        "_CURRENT",
    ): "which process of a job runs, by thread and task",
    (
        "monolith.native_training.yarn_runtime",
        "_CHANNEL_MAP",
    ): "a channel for each application master",
    (
        "monolith.native_training.yarn_runtime",
        "_CHANNEL_LOCK",
    ): "guards these channels",
    ("monolith.train.driver", "_DEFAULT"): "the registry of a context outside of all runs",
    ("monolith.train.driver", "_STACK"): "the current runs of each context",
}


@pytest.mark.req("G-T2")
def test_modules_hold_no_mutable_state_but_the_allowed():
    found = {(name, state) for name, _, tree in modules() for state in mutable_state(tree)}
    assert found == set(ALLOWED)


@pytest.mark.req("G-T2")
def test_modules_import_optional_packages_only_on_use():
    required = required_packages()
    found = {
        name: list(optional_imports(tree, required))
        for name, _, tree in modules()
        if not name.endswith("_pb2")  # generated messages, which other modules import on use
    }
    assert {name: packages for name, packages in found.items() if packages} == {}


def test_only_the_config_reads_the_environment():
    readers = {name for name, _, tree in modules() if list(environment_uses(tree))}
    assert readers == {"monolith.environment"}


@pytest.mark.parametrize(
    "source", ["os.environ['A']", "os.getenv('A')", "from os import environ", "os.putenv('A', 'b')"]
)
def test_a_use_of_the_environment_is_found(source):
    assert len(list(environment_uses(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "x = []",
        "x: dict[str, int] = {}",
        "x = {n: 1 for n in names}",
        "x = threading.Lock()",
        "x = dict[str, int]()",
        "x = torch.zeros(3)",
        "if flag:\n    x = set()",
        "try:\n    x = []\nexcept OSError:\n    pass",
        "@functools.lru_cache(maxsize=None)\ndef x(): ...",
        "@cache\ndef x(): ...",
        "def f():\n    global x\n    x = 1",
    ],
)
def test_mutable_state_is_found(source):
    assert list(mutable_state(ast.parse(source))) == ["x"]


@pytest.mark.parametrize(
    "source",
    [
        "__all__ = ['a']",
        "x = (1, 2)",
        "x = frozenset({1})",
        "x = MappingProxyType({1: 2})",
        "x: int",
        "def f():\n    x = []",
        "class A:\n    def f(self):\n        x = []",
    ],
)
def test_constants_and_locals_are_no_state(source):
    assert list(mutable_state(ast.parse(source))) == []


@pytest.mark.parametrize(
    "source",
    ["import zmq.asyncio", "from zmq import Context", "try:\n    import zmq\nexcept E: ..."],
)
def test_an_optional_import_is_found(source):
    assert list(optional_imports(ast.parse(source), {"os"})) == ["zmq"]


@pytest.mark.parametrize(
    "source",
    [
        "import os.path",
        "from . import x",
        "def f():\n    import zmq",
        "if TYPE_CHECKING:\n    import zmq",
    ],
)
def test_an_import_on_use_or_for_types_is_allowed(source):
    assert list(optional_imports(ast.parse(source), {"os"})) == []


def test_the_required_packages_come_from_the_installed_metadata():
    assert {"os", "torch", "numpy", "monolith"} <= required_packages()
    assert "pytest" not in required_packages()
