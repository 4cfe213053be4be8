"""Decide where tables and dense parameters live: in the trainer, or on servers."""

from collections.abc import Callable
from typing import Any

import torch

from monolith.cluster import LocalServers, Servers
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.cluster.ranks.ranks_engine import ranks_engine
from monolith.cluster.servers_engine import servers_engine
from monolith.features import BagFeature, FeatureEngine, engine_for
from monolith.observe.metrics import MetricsSink
from monolith.ops.devices import DeviceTransfer, find_device, state_on
from monolith.table import Table, TableConfig
from monolith.table.base import BaseTable
from monolith.table.calls import Clock
from monolith.table.routing import PartitionRouting

EngineMaker = Callable[[list[BaseTable], list[BagFeature]], FeatureEngine]
"""(tables, features) -> engine."""


def table_maker(
    servers: Servers | None, clock: Clock, ranks: RankTables | None = None
) -> Callable[[TableConfig], BaseTable]:
    """Return what makes the table of a config: here, or with a shard on each server or rank."""

    def make(config: TableConfig) -> BaseTable:
        if servers is None:
            return Table(config, clock=clock)
        routing = PartitionRouting(len(servers)) if ranks is None else ranks.routing
        return servers.table(config, routing, clock)

    return make


def engine_maker(
    servers: Servers | None,
    sink: MetricsSink | None = None,
    model_name: str = "",
    ranks: RankTables | None = None,
    transfer: str = "float32",
) -> EngineMaker:
    """Return what makes the engine of tables that `table_maker` made.

    Args:
        servers: of the tables; None keeps them in the trainer.
        sink: takes the times of lookups on servers; None measures nothing.
        model_name: a tag of these times.
        ranks: tables of synchronous ranks; None without them.
        transfer: dtype in which rows and gradients travel between ranks.
    """
    if ranks is not None:
        return ranks_engine(ranks, transfer)
    return engine_for if servers is None else servers_engine(servers, sink, model_name)


def transfer_to(device: str) -> DeviceTransfer | None:
    """Return the transfer to the device of a dense model; None if that is the CPU.

    Raises:
        ValueError: This machine does not have the device.
    """
    place = find_device("[Trainer]", device)
    return None if place.type == "cpu" else DeviceTransfer(place)


def host_parameters(
    model: torch.nn.Module, servers: Servers | None, transfer: DeviceTransfer | None = None
) -> list[tuple[torch.nn.Parameter, dict[str, Any]]]:
    """Put the model on its device, and the parameters of servers in the place of the model's.

    Servers take turns. A server that has a parameter of the name keeps its value, on the device of
    the model from now on; else it takes that of the model. Parameters stay in the trainer if the
    servers are other processes.

    Returns:
        The parameters, each with what an optimizer has kept for it.
    """
    if transfer is not None:
        model.to(transfer.device)
    if not isinstance(servers, LocalServers):
        return []
    hosted, pairs = {}, []
    for i, (name, parameter) in enumerate(model.named_parameters()):
        server = servers[i % len(servers)]
        hosted[id(parameter)] = mine = server.parameter(name, parameter)
        mine.requires_grad_(parameter.requires_grad)
        state = server.state(name)
        if mine.device != parameter.device:
            mine.data = mine.data.to(parameter.device)
            state.update(state_on(parameter.device, state))
        pairs.append((mine, state))
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, hosted[id(parameter)])
    return pairs
