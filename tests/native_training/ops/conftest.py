from tests.ops.conftest import compiled  # noqa: F401 - a fixture
