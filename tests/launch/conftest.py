from tests.train.roles.conftest import nursery, samples  # noqa: F401
