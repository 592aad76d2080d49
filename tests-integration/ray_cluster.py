"""A cluster of Ray on this machine, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Generator

NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
}


@contextlib.contextmanager
def running_cluster() -> Generator[Any]:
    """Yield a cluster of two raylets with a core each.

    Its folder is not one of the test: the paths of Ray's sockets must be short.
    """
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        own = Path(folder, "ray")  # Ray looks for its clusters here.
        own.mkdir()
        environment = {
            "RAY_TMPDIR": folder,
            "RAY_AUTH_TOKEN": secrets.token_hex(32),  # Else a file in the home.
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        }
        with mock.patch.dict(os.environ, environment):
            clusters: Any = import_module("ray.cluster_utils")
            cluster = clusters.Cluster(
                initialize_head=True,
                head_node_args={**NODE, "temp_dir": str(own)},
            )
            try:
                cluster.add_node(**NODE)
                yield cluster
            finally:
                nodes = cluster.list_all_nodes()
                cluster.shutdown()
                assert not any(each.any_processes_alive() for each in nodes)


def raylet_of(node: Any) -> int:
    """Return the process of a node's raylet."""
    [raylet] = node.all_processes["raylet"]
    return raylet.process.pid


def children(pid: int) -> list[int]:
    """Return the children of a process; empty if the system does not list them."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    with contextlib.suppress(OSError):  # The process may have ended.
        return [int(each) for each in path.read_text().split()]
    return []


def workers_of(cluster: Any) -> list[int]:
    """Return the processes that run tasks; empty if the system does not list them."""
    raylets = map(raylet_of, cluster.list_all_nodes())
    found = [each for raylet in raylets for each in children(raylet)]
    return [each for each in found if _is_worker(each)]


def _is_worker(pid: int) -> bool:
    # A raylet also starts agents, which run no tasks.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    return False
