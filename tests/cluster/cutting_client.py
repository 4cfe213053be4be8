"""A client that opens a cut on servers and waits to be killed: `cutting_client.py ADDRESS...`."""

import sys

import torch

from monolith.cluster.zmq.connect import connect_servers
from tests.cluster.pushers import Pusher

if __name__ == "__main__":
    torch.set_num_threads(1)
    with connect_servers(sys.argv[1:]) as servers:
        pusher = Pusher(servers)
        pusher.push()
        with pusher.table.cut():
            print("cut", flush=True)
            sys.stdin.read()
