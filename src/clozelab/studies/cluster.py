"""The cells of a study as tasks of a Ray cluster that sees the study's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from clozelab import registry
from clozelab.errors import UserError

LOCAL = "local"
T = TypeVar("T")
Job = TypeVar("Job")


@contextmanager
def jobs(
    address: str, work: Callable[[Job], T], *, share: int, device: str | None
) -> Iterator[Callable[[Job], Future[T]]]:
    """A function that runs jobs on the cluster; `share` of them share a GPU."""
    ray = known(address)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            include_dashboard=False,
            runtime_env={"env_vars": registry.environment()},  # for parts from outside
        )
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        raise UserError(f"--on {address}: cannot be reached ({error}); check the address") from None
    try:
        gpus = ray.cluster_resources().get("GPU", 0) if device != "cpu" else 0
        needs: dict[str, Any] = {"num_cpus": 1, "num_gpus": 1 / share if gpus else 0}
        task = ray.remote(max_retries=0, **needs)(work)
        yield lambda job: task.remote(job).future()
    finally:
        ray.shutdown()


def known(address: str) -> Any:
    """Ray, if that is the address of a cluster and it is installed."""
    if address != LOCAL and not address.startswith("ray://"):
        raise UserError(f"--on {address}: is no cluster; give ray://HOST:PORT, or local")
    try:
        return import_module("ray")
    except ImportError:
        raise UserError(
            f"--on {address}: needs Ray; install it by pip install clozelab[ray]"
        ) from None
