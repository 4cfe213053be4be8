"""An S3 server for the tests of this folder, and a fresh bucket for each test."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import Any

import fsspec
import pytest

from tests.forker import ROOT, limited


@dataclass
class Bucket:
    """A bucket of the server, with what fsspec needs to reach it."""

    name: str
    port: int
    options: dict[str, Any]
    system: Any

    @property
    def url(self):
        return f"s3://{self.name}"

    def files(self, folder=""):
        """Paths below a folder, relative to it."""
        start = f"{self.name}/{folder}".rstrip("/")
        return sorted(path[len(start) + 1 :] for path in self.system.find(start))

    def environment(self, **changes):
        """The environment for a program that uses the bucket."""
        return {**os.environ, "FSSPEC_S3": json.dumps({**self.options, **changes})}


@pytest.fixture(scope="session")
def s3_port():
    with subprocess.Popen(
        [sys.executable, "-m", "tests.stores.s3_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            with limited(process.kill, 60):
                port = int(process.stdout.readline())
            yield port
        finally:
            os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def bucket(s3_port, monkeypatch):
    """A bucket that this process reaches under its name, with short timeouts."""
    options = {
        "endpoint_url": f"http://127.0.0.1:{s3_port}",
        "key": "key",
        "secret": "secret",
    }
    system = fsspec.filesystem("s3", use_listings_cache=False, **options)
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    system.mkdir(name)
    use_options(monkeypatch, options)
    return Bucket(name, s3_port, options, system)


def use_options(monkeypatch, options):
    """Let fsspec reach S3 with these options, as a file of its configuration would."""
    monkeypatch.setitem(fsspec.config.conf, "s3", options)


@contextlib.contextmanager
def killed_at_end(process):
    """End a process that a test has started."""
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
