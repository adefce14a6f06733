"""A Ray cluster, as `--on` names it: ray://HOST:PORT, or local for one on this machine.

Studies can run their cells on it, and corpora can be built on it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from clozelab import __version__, interrupts, registry
from clozelab.errors import UserError

LOCAL = "local"
_ANSWER = 60  # seconds for a node to tell its version of clozelab; not tuned
T = TypeVar("T")
Job = TypeVar("Job")


def known(address: str) -> Any:
    """The module of Ray; refuses an invalid address, and a missing installation."""
    if address != LOCAL and not address.startswith("ray://"):
        raise UserError(f"--on {address}: is not a cluster; give ray://HOST:PORT, or local")
    try:
        return import_module("ray")
    except ImportError:
        raise UserError(
            f"--on {address}: needs Ray; install it with pip install clozelab[ray]"
        ) from None


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster whose nodes have clozelab; its warnings are hidden."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="ray")
        ray = known(address)
        if ray.is_initialized():
            raise UserError(
                f"--on {address}: this process is already connected to a cluster; call"
                " ray.shutdown() first"
            )
        try:
            _connect(ray, address)
            _check_nodes(ray, address)
            yield ray
        except ConnectionError as error:
            raise UserError(
                f"--on {address}: the connection was lost ({error}); run the same command again"
                " to continue"
            ) from None
        finally:
            ray.shutdown()  # also after a failure, or Ray would reuse this connection for the next


def _connect(ray: Any, address: str) -> None:
    try:
        with interrupts.handlers_restored():
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False,
                runtime_env={"env_vars": registry.environment()},  # of parts outside the package
            )
    except ImportError as error:
        raise UserError(
            f"--on {address}: needs Ray's client ({error}); install it with pip install"
            " clozelab[ray]"
        ) from None
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UserError(
            f"--on {address}: cannot be reached ({reason}); check the address"
        ) from None


@contextmanager
def jobs(
    address: str, work: Callable[[Job], T], *, share: int, device: str | None
) -> Iterator[Callable[[Job], Future[T]]]:
    """A function that runs jobs on the cluster; `share` of them share a GPU."""
    with connected(address) as ray:
        gpus = ray.cluster_resources().get("GPU", 0) if device != "cpu" else 0
        needs: dict[str, Any] = {"num_cpus": 1, "num_gpus": 1 / share if gpus else 0}
        task = ray.remote(max_retries=0, **needs)(work)
        yield lambda job: task.remote(job).future()


def _check_nodes(ray: Any, address: str) -> None:
    """Refuse a cluster with a node on which clozelab is not installed, or another version."""
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    # A lambda is pickled by value; a function of a module would be imported on the node.
    task = ray.remote(num_cpus=0, max_retries=0)(lambda: __import__("clozelab").__version__)
    nodes_by_task = {
        task.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(): node
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    }
    answered, _ = (
        ray.wait([*nodes_by_task], num_returns=len(nodes_by_task), timeout=_ANSWER)
        if nodes_by_task
        else ([], [])
    )
    for answer in answered:
        try:
            installed = f"clozelab {ray.get(answer)}"
        except ImportError as error:
            installed = f"no clozelab that can be imported ({error.args[-1]})"
        except ray.exceptions.RayError:  # a node that has died gets no work either
            continue
        if installed != f"clozelab {__version__}":
            raise UserError(
                f"--on {address}: the node {nodes_by_task[answer]['NodeManagerAddress']} has"
                f" {installed}; install clozelab {__version__} on every node"
            )
