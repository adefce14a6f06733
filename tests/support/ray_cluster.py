"""A Ray cluster of several nodes on this machine, for tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.processes import SOURCE

STORE = 100 << 20  # bytes of each node's object store


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def cluster(**head: Any) -> Iterator[Any]:
    """A cluster of one node, to which others are added."""
    from ray.cluster_utils import Cluster

    head |= {"object_store_memory": STORE, "include_dashboard": False}
    nodes = Cluster(head_node_args=head, initialize_head=True)
    try:
        yield nodes
    finally:
        nodes.shutdown()


def add(nodes: Any, source: str = SOURCE) -> Any:
    """A node of one core whose clozelab is that of a folder."""
    return nodes.add_node(
        num_cpus=1, object_store_memory=STORE, env_vars={"PYTHONPATH": source}, wait=True
    )
