"""ZeroMQ between clients and servers; the extra `cluster` installs pyzmq."""
