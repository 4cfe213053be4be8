"""A ZooKeeper server of Debian's packages, in the foreground on a free port."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

JARS = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar")
NEEDS = (
    "ZooKeeper and a Java runtime: bash tools/debian.sh as root, or on Debian "
    "apt-get install libzookeeper-java default-jre-headless"
)
_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def skip_without_zookeeper():
    if shutil.which("java") is None or not all(Path(jar).exists() for jar in JARS):
        pytest.skip(f"needs {NEEDS}")


class ZooKeeperServer:
    """A server, which can be stopped, killed and started again with its data.

    Attributes:
        hosts: where clients connect.
    """

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="zookeeper")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.hosts = f"127.0.0.1:{self._port}"
        lines = {
            "dataDir": self._folder,
            "clientPort": self._port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": 200,  # sessions of 0.4 to 4 s
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
        }
        path = os.path.join(self._folder, "zoo.cfg")
        Path(path).write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._command = ["java", *_OPTIONS, "-cp", ":".join(JARS), _MAIN, path]
        self.start()

    def start(self, seconds=60):
        with open(os.path.join(self._folder, "log"), "a") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        pause = threading.Event()
        for _ in range(int(seconds / 0.05)):
            if self._is_ok():
                return
            assert self._process.poll() is None, Path(self._folder, "log").read_text()[-2000:]
            pause.wait(0.05)
        raise AssertionError(f"ZooKeeper does not answer after {seconds} seconds")

    def _is_ok(self):
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as client:
                client.sendall(b"ruok")
                return client.recv(4) == b"imok"
        except OSError:
            return False

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self._process.wait(60)

    def close(self):
        self.kill()
        shutil.rmtree(self._folder)
