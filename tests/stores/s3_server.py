"""A server that speaks S3 on a free loopback port and keeps objects in memory.

Prints its port, and ends when its standard input closes, so also when the tests were killed.
"""

import sys

from moto.server import ThreadedMotoServer

if __name__ == "__main__":
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
