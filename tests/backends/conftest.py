"""A Ray cluster for the tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Yield a cluster with a head and a spare node, which have room for one actor each; it asks for a token."""
    # Not importorskip: how Ray asks for a token is decided before it is imported.
    if find_spec("ray") is None:
        pytest.skip("needs the extra: pip install 'twotemp[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
        from ray.cluster_utils import Cluster

        cluster = Cluster(head_node_args={"num_cpus": 1, "include_dashboard": False}, initialize_head=True)
        cluster.spare = cluster.add_node(num_cpus=1)
        yield cluster
        cluster.shutdown()
