import pytest

from tests.meta.layers import LEAVES, RANK, layer_of, wrong_imports
from tests.meta.tree import ADAPTERS, SRC, modules

MAX_ADAPTER_LINES = 30


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
    known = {"", *RANK, *LEAVES, *ADAPTERS}
    assert [name for name, _, _ in modules() if layer_of(name) not in known] == []


def test_adapters_are_short():
    adapters = [path for name, path, _ in modules() if layer_of(name) in ADAPTERS]
    long = {str(path): len(path.read_text().splitlines()) for path in adapters}
    assert {path: lines for path, lines in long.items() if lines > MAX_ADAPTER_LINES} == {}


@pytest.mark.parametrize(
    ("layer", "source", "target"),
    [
        ("ops", "import monolith.embedding.table", "monolith.embedding.table"),
        ("ops", "from monolith import nn", "monolith.nn"),
        ("ops", "from ..train import loop", "monolith.train.loop"),
        ("ops", "def late():\n    from monolith.cli import env", "monolith.cli.env"),
        ("nn", "from monolith.optim import adam", "monolith.optim.adam"),
        ("util", "from monolith.ops import native", "monolith.ops.native"),
        ("observe", "import monolith.util", "monolith.util"),
        ("train", "import monolith.native_training", "monolith.native_training"),
        ("train", "from monolith import path_utils", "monolith.path_utils"),
        ("native_training", "from monolith import utils", "monolith.utils"),
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
        ("embedding", "from monolith import _native, errors"),
        ("embedding", "from . import rows\nfrom .rows import Row"),
        ("observe", "from monolith import __version__\nimport torch"),
        ("util", "from monolith.errors import OpError"),
        ("native_training", "from monolith.train import loop\nimport monolith.native_training.x"),
    ],
)
def test_a_downward_import_is_allowed(tmp_path, layer, source):
    assert wrong_imports(fake_tree(tmp_path, **{layer: source})) == []


def test_the_package_is_where_the_tests_look():
    assert (SRC / "__init__.py").is_file()
