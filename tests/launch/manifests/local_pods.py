"""Runs the containers of printed objects of Kubernetes as processes of this machine."""

import contextlib
import random
import re
import shutil
import subprocess
import sys
import time

from monolith.launch.manifests.kubernetes import FILES, KEYS, SECRET

MONOLITH = (sys.executable, "-m", "monolith.cli.main")
WAIT_SECONDS = 240


class LocalPods:
    """The pods of a StatefulSet and of a Job, each with a loopback address of its own.

    Args:
        objects: The objects.
        folder: Folder in which the folders of containers are.
        keys: File of the keys, for the Secret.
        volumes: Folder of a container -> folder of this machine.
    """

    def __init__(self, objects, folder, keys, volumes):
        self._folder, self._volumes = folder, volumes
        by_kind = {each["kind"]: each for each in objects}
        self.servers, self.workers = by_kind["StatefulSet"], by_kind["Job"]
        self.service = by_kind["Service"]
        (folder / "secret").mkdir()
        shutil.copy(keys, folder / "secret" / "job.keys")
        (folder / "secret" / "job.keys").chmod(0o644)
        (folder / "files").mkdir()
        for name, text in by_kind["ConfigMap"]["data"].items():
            (folder / "files" / name).write_text(text)
        random_bytes = random.Random().choices(range(2, 250), k=2)
        self._network = f"127.{random_bytes[0]}.{random_bytes[1]}"
        self.processes = {}

    def address(self, server):
        return f"{self._network}.{server + 1}"

    def start(self):
        for index in range(self.servers["spec"]["replicas"]):
            self._start(self.servers, index)
        for index in reversed(range(self.workers["spec"]["completions"])):
            self._start(self.workers, index)  # the chief is last, so that it does not train alone
            if index:
                self._wait_for_log(f"{self.workers['metadata']['name']}-{index}", "connected to")

    def _wait_for_log(self, name, words):
        end = time.monotonic() + WAIT_SECONDS
        while words not in self.log(name) and time.monotonic() < end:
            assert self.processes[name].poll() is None, self.log(name)
            time.sleep(0.1)

    def _start(self, owner, index):
        name = f"{owner['metadata']['name']}-{index}"
        pod = owner["spec"]["template"]["spec"]
        (self._folder / name).mkdir()
        for container in pod["initContainers"]:
            subprocess.run(self._words(container, name, index), check=True)
        (container,) = pod["containers"]
        program, *arguments = self._words(container, name, index)
        assert program == "monolith"
        with open(self._folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [*MONOLITH, *arguments], cwd=self._folder / name, stdout=log, stderr=log
            )

    def _words(self, container, name, index):
        """The command line of a container, as Kubernetes and this machine read it."""
        words = [*container["command"], *container.get("args", [])]
        variables = {each["name"]: str(index) for each in container.get("env", [])}

        def expand(match):
            return "$" if match[0] == "$$" else variables.get(match[1], match[0])

        words = [re.sub(r"\$\$|\$\((\w+)\)", expand, word) for word in words]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        folders = {SECRET: "secret", FILES: "files", KEYS: name}
        places = {path: self._folder / folder for path, folder in folders.items()}
        places |= self._volumes
        for path in mounts:
            words = [word.replace(path, str(places[path])) for word in words]
        service = self.service["metadata"]["name"]
        for server in range(self.servers["spec"]["replicas"]):
            host = f"{self.servers['metadata']['name']}-{server}.{service}:"
            words = [word.replace(host, f"{self.address(server)}:") for word in words]
        return [word.replace("0.0.0.0", self.address(index)) for word in words]

    def log(self, name):
        return (self._folder / f"{name}.log").read_text()

    def wait(self):
        """The exit statuses of all pods, by their names."""
        return {name: each.wait(WAIT_SECONDS) for name, each in self.processes.items()}

    def close(self):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(WAIT_SECONDS)
