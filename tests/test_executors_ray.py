"""Ray actors under the same supervisor. Needs the extra `ray`; every test has a cluster of its own machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from tests.executor_makes import Free, Stumbling, free, slow
from tests.test_executors import UNIT, run
from twotemp.errors import UserError
from twotemp.executors import Supervisor
from twotemp.executors.ray_actors import RayActors

# Not importorskip: how Ray asks for a token is decided before it is imported.
if find_spec("ray") is None:
    pytest.skip("needs the extra: pip install 'twotemp[ray]'", allow_module_level=True)


pytestmark = pytest.mark.usefixtures("toy_tasks")


@pytest.fixture(scope="module")
def cluster():
    """A head and another node, with room for one actor each; it asks for a token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
        from ray.cluster_utils import Cluster

        made = Cluster(head_node_args={"num_cpus": 1, "include_dashboard": False}, initialize_head=True)
        made.spare = made.add_node(num_cpus=1)
        yield made
        made.shutdown()


@pytest.mark.parametrize("how", ["never", "kill", "hang", "ray.kill", "node removed"])
def test_whatever_happens_to_an_actor_nothing_is_lost(cluster, tmp_path, how):
    import ray

    (marks := tmp_path / "marks").mkdir()
    make = Stumbling(marks, how, make=slow)
    drawer = Supervisor(RayActors(make, address=cluster.address), 2, unit=UNIT, patience=5.0)

    class Struck:
        """The drawer, and what comes over it from outside after some samples."""

        name, fingerprint, encode = drawer.name, drawer.fingerprint, drawer.encode

        def draw(self, chunks):
            for number, found in enumerate(drawer.draw(chunks)):
                if number == 20 and how == "ray.kill":
                    ray.kill(drawer._hands[0].worker._actor)
                if number == 20 and how == "node removed":
                    cluster.remove_node(cluster.spare, allow_graceful=False)
                yield found

    with drawer:
        while how == "node removed" and not all(hand.card for hand in drawer._hands):
            drawer._hear()  # both nodes have work
        found = run(Struck(), tmp_path / "run")
    assert found == run(Free(), tmp_path / "here")
    assert len(list(marks.iterdir())) == (how in ("kill", "hang"))
    assert (drawer.resent > 0) == (how != "never")


def test_a_local_cluster_is_not_started_unless_it_may_be_reached():
    with pytest.raises(UserError, match=r"all network interfaces.*--workers.*--ray-reachable"):
        RayActors(free, address="local")


LOCAL = """
import os, subprocess, sys
from tests.executor_makes import told
from twotemp.executors import Supervisor
from twotemp.executors.ray_actors import RayActors
os.environ["HF_TOKEN"] = "secret"
with Supervisor(RayActors(told, address="local", reachable=True), 1) as drawer:
    print("actor has:", drawer.name)
    import ray
    address = ray.get_runtime_context().gcs_address
    for token in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed" * 9}):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | token
        code = f"import ray; ray.init(address={address!r}); print('came in')"
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        print("stranger:", done.returncode != 0, "came in" in done.stdout, "Unauthenticated" in done.stderr)
with Supervisor(RayActors(told, address="local", reachable=True), 1) as drawer:  # Ray keeps the first token
    print("once more:", drawer.name)
"""


@pytest.mark.slow
def test_a_local_cluster_keeps_strangers_out_and_secrets_away():
    done = subprocess.run(
        [sys.executable, "-c", LOCAL],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    strangers = ["stranger: True False True"] * 2
    assert done.stdout.splitlines() == ["actor has: None", *strangers, "once more: None"], done.stderr


@pytest.mark.slow
def test_control_c_is_as_quiet_as_without_ray(micro_folder, tmp_path):
    """To the whole process group, as a terminal sends it; Ray's own servers have nothing to say about it."""
    run = tmp_path / "run"
    options = ["--tasks", "countdown-3", "--policies", "ar,tct", "--questions", "50", "-n", "64"]
    command = [
        sys.executable,
        "-c",
        "from twotemp.cli import main; main()",
        "eval",
        "--model",
        str(micro_folder),
    ]
    process = subprocess.Popen(
        [*command, *options, "--ray", "local", "--ray-reachable", "--workers", "1", "--out", str(run)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    while not list(run.glob("*/samples-*")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"stopped; finished work is kept in {run}, and the same command continues" in said
    assert len(said.splitlines()) <= 3, said
