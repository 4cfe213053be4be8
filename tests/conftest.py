pytest_plugins = ["pytester", "tests.acceptance"]
