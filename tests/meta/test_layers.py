import re
from collections import Counter

import pytest

from tests.meta.layers import LEAVES, LOADER, RANK, WING, imported, layer_of, wrong_imports
from tests.meta.tree import ROOT, SRC, WING_DOORS, modules

MAX_FILES = 20  # of a folder


def fake_tree(tmp_path, **files):
    """Writes src/monolith/<folder>/module.py for each keyword and returns src/monolith."""
    for folder, source in files.items():
        path = tmp_path / "monolith" / folder / "module.py"
        path.parent.mkdir(parents=True)
        path.write_text(source)
    return tmp_path / "monolith"


def test_layers_import_downwards_only():
    assert wrong_imports() == []


def test_every_module_belongs_to_a_layer():
    known = {"", WING, *RANK, *LEAVES, *WING_DOORS}
    assert [name for name, _, _ in modules() if layer_of(name) not in known] == []


def test_the_loader_of_the_core_imports_nothing_of_ours():
    (tree,) = [tree for name, _, tree in modules() if name == LOADER]
    assert list(imported(tree, LOADER, is_package=False)) == ["monolith"]


def test_a_module_name_means_one_thing():
    stems = [
        path.stem
        for name, path, _ in modules()
        if path.stem != "__init__" and layer_of(name) not in (WING, "cli")
    ]
    assert [stem for stem, number in Counter(stems).items() if number > 1] == []


def test_a_folder_can_be_taken_in_at_a_glance():
    """The import paths of the reference system are as many as it has."""
    folders = Counter(path.parent for _, path, _ in modules() if path.parent != SRC / WING)
    assert {str(folder): n for folder, n in folders.items() if n > MAX_FILES} == {}


@pytest.mark.parametrize(
    ("layer", "source", "target"),
    [
        ("ops", "import monolith.table.native", "monolith.table.native"),
        ("features", "from monolith import cluster", "monolith.cluster"),
        ("cluster", "import monolith.table.reference.table", "monolith.table.reference.table"),
        ("ops", "from monolith import nn", "monolith.nn"),
        ("ops", "from ..train import loop", "monolith.train.loop"),
        ("ops", "def late():\n    from monolith.cli import env", "monolith.cli.env"),
        ("nn", "from monolith.optim import adam", "monolith.optim.adam"),
        ("util", "from monolith.ops import ragged", "monolith.ops.ragged"),
        ("util", "import monolith.observe", "monolith.observe"),
        ("observe", "from monolith.ops import compiled", "monolith.ops.compiled"),
        ("train", "import monolith.native_training", "monolith.native_training"),
        ("train", "from monolith import path_utils", "monolith.path_utils"),
        ("native_training", "from monolith import utils", "monolith.utils"),
        ("path_utils", "from monolith import utils", "monolith.utils"),
        ("ops", "import monolith.unheard", "monolith.unheard"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, layer, source, target):
    src = fake_tree(tmp_path, **{layer: source})
    assert wrong_imports(src) == [f"monolith.{layer}.module imports {target}"]


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("train", "from monolith.cluster import sync"),
        ("table", "from monolith import _native, errors"),
        ("table", "from . import rows\nfrom .rows import Row"),
        ("observe", "from monolith import __version__\nimport torch"),
        ("util", "from monolith.errors import OpError"),
        ("util", "from monolith.ops.compiled import load_native"),
        ("observe", "from monolith.util import protobuf"),
        ("native_training", "from monolith.train import loop\nimport monolith.native_training.x"),
        ("utils", "from monolith.native_training.util import files"),
    ],
)
def test_a_downward_import_is_allowed(tmp_path, layer, source):
    assert wrong_imports(fake_tree(tmp_path, **{layer: source})) == []


def test_the_core_includes_nothing_that_only_the_wing_uses():
    paths = [path for path in (ROOT / "native").rglob("*") if path.suffix in (".cpp", ".h")]
    users = {path for path in paths if '#include "compat/' in path.read_text()}
    rooms = {path.relative_to(ROOT / "native").parts[0] for path in users}
    assert rooms == {"compat", "tests"}


def test_only_the_wing_calls_its_part_of_the_core():
    bindings = (ROOT / "native" / "compat" / "bindings").glob("*.cpp")
    calls = set().union(*(re.findall(r'^ +"(\w+)",$', path.read_text(), re.M) for path in bindings))
    call = re.compile(rf"native(?:\(\))?\.(?:{'|'.join(calls)})\(")
    callers = {layer_of(name) for name, path, _ in modules() if call.search(path.read_text())}
    assert len(calls) > 10
    assert callers == {WING}


def test_the_package_is_where_the_tests_look():
    assert (SRC / "__init__.py").is_file()
