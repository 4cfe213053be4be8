"""A Consul and a ZooKeeper in memory."""

from collections import defaultdict
from types import SimpleNamespace


class FakeConsul:
    """The calls of a `ConsulAgent`.

    Args:
        blacklist: hosts that are silently not registered.
    """

    def __init__(self, blacklist=()):
        self._blacklist, self._services = set(blacklist), defaultdict(dict)

    def register(self, service, entry, ttl_seconds):
        if entry.host not in self._blacklist:
            self._services[service][entry.port] = entry

    def lookup(self, service):
        return list(self._services[service].values())

    def deregister(self, service, entry):
        self._services[service].pop(entry.port, None)


class NoNodeError(Exception):
    pass


class FakeKazooClient:
    """A client of ZooKeeper with its own nodes, which calls watches at once.

    Attributes:
        nodes: path -> node, with `data`, `stat` and whether it is `ephemeral`.
        num_stops: calls of `stop`.
    """

    def __init__(self, hosts="", **options):
        self.hosts, self.options = hosts, options
        self.nodes, self.connected, self.client_id = {}, False, (1, b"")
        self.num_stops, self.failures = 0, {}
        self._listeners, self._data, self._children = [], defaultdict(list), defaultdict(list)
        self._time = 0

    def start(self, timeout=15):
        self.connected = True

    def stop(self):
        self.connected = False
        self.num_stops += 1

    def close(self):
        pass

    def __getattr__(self, name):
        """`exists_async(...)`: an answer that is there."""
        call = getattr(type(self), name.removesuffix("_async"), None)
        if call is None or not name.endswith("_async"):
            raise AttributeError(name)

        def ask(*arguments, **options):
            return SimpleNamespace(
                get=lambda timeout: getattr(self, call.__name__)(*arguments, **options)
            )

        return ask

    # Nodes

    def ensure_path(self, path, acl=None):
        for length in range(1, len(path.split("/"))):
            part = "/".join(path.split("/")[: length + 1])
            if part not in self.nodes:
                self._set(part, b"", 0)

    def create(self, path, value=b"", acl=None, ephemeral=False):
        assert path not in self.nodes
        assert path.rpartition("/")[0] in self.nodes
        self._set(path, value, self.client_id[0] if ephemeral else 0)

    def set(self, path, value):
        self._set(path, value, self.nodes[path].stat.ephemeralOwner)

    def _set(self, path, value, owner):
        self._time += 1
        old = self.nodes.get(path)
        created = self._time if old is None else old.stat.czxid
        stat = SimpleNamespace(czxid=created, ephemeralOwner=owner, mtime=self._time)
        self.nodes[path] = SimpleNamespace(data=value, stat=stat)
        self._tell(path, is_new=old is None)

    def get(self, path):
        if path not in self.nodes:
            raise NoNodeError(path)
        return self.nodes[path].data, self.nodes[path].stat

    def exists(self, path):
        return self.nodes[path].stat if path in self.nodes else None

    def get_children(self, path):
        return [p.rpartition("/")[2] for p in self.nodes if p.rpartition("/")[0] == path]

    def delete(self, path, recursive=False):
        if path in self.failures:
            raise self.failures[path]
        for each in [p for p in self.nodes if p == path or p.startswith(f"{path}/")]:
            del self.nodes[each]
            self._tell(each, is_new=True)

    # Watches and listeners

    def DataWatch(self, path, see):  # noqa: N802 -- the name in kazoo
        self._data[path].append(see)
        self._call_data(path)

    def ChildrenWatch(self, path, see):  # noqa: N802
        self._children[path].append(see)
        see(self.get_children(path))

    def _call_data(self, path):
        node = self.nodes.get(path)
        arguments = (None, None) if node is None else (node.data, node.stat)
        self._data[path] = [see for see in self._data[path] if see(*arguments) is not False]

    def _tell(self, path, *, is_new):
        self._call_data(path)
        if is_new:
            folder = path.rpartition("/")[0]
            for see in self._children[folder]:
                see(self.get_children(folder))

    def add_listener(self, listener):
        self._listeners.append(listener)

    def change(self, state):
        """Tell the listeners a state; a lost session takes its nodes along."""
        if state == "LOST":
            for path in [p for p, node in self.nodes.items() if node.stat.ephemeralOwner]:
                self.delete(path)
        for listener in self._listeners:
            listener(state)
