"""Ray actors under the same supervisor. Needs the extra `ray`; the cluster runs on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from tests.helpers.fake_workers import FreeBackend, FreeText, Stumbling, free, slow
from tests.helpers.serving_clients import wait_for
from tests.helpers.worker_runs import UNIT, run
from twotemp.backends.pool import WorkerPool
from twotemp.backends.ray import RayTransport
from twotemp.errors import UserError

# Not importorskip: how Ray asks for a token is decided before it is imported.
if find_spec("ray") is None:
    pytest.skip("needs the extra: pip install 'twotemp[ray]'", allow_module_level=True)


pytestmark = pytest.mark.usefixtures("toy_tasks")


@pytest.mark.parametrize("how", ["never", "kill", "hang", "ray.kill", "node removed"])
def test_nothing_is_lost_when_an_actor_fails(ray_cluster, tmp_path, how):
    import ray

    (marks := tmp_path / "marks").mkdir()
    make = Stumbling(marks, how, make=slow)
    transport = RayTransport(make, address=ray_cluster.address)
    pool = WorkerPool(transport, 2, FreeText(), unit=UNIT, hang_seconds=5.0)

    class Struck:
        """The pool, and a fault from outside after some samples."""

        name, fingerprint, workers, text = pool.name, pool.fingerprint, 2, pool.text

        def sample(self, requests):
            for number, sample in enumerate(pool.sample(requests)):
                if number == 20 and how == "ray.kill":
                    ray.kill(pool._slots[0].link.actor)
                if number == 20 and how == "node removed":
                    ray_cluster.remove_node(ray_cluster.spare, allow_graceful=False)
                yield sample

    with pool:
        if how == "node removed":
            wait_for(lambda: pool.ready == 2)  # both nodes have work
        found = run(Struck(), tmp_path / "run")
    assert found == run(FreeBackend(), tmp_path / "here")
    assert len(list(marks.iterdir())) == (how in ("kill", "hang"))
    assert (pool.resent > 0) == (how != "never")


def test_a_local_cluster_is_not_started_unless_it_may_be_reached():
    with pytest.raises(UserError, match=r"all network interfaces.*--workers.*--ray-reachable"):
        RayTransport(free, address="local")


LOCAL = """
import os, subprocess, sys
from tests.helpers.fake_workers import named
from twotemp.backends.ray import RayTransport
from twotemp.backends.supervisor import Supervisor
os.environ["HF_TOKEN"] = "secret"
with Supervisor(RayTransport(named, address="local", reachable=True), 1, depth=1) as service:
    print("actor has:", service.name)
    import ray
    address = ray.get_runtime_context().gcs_address
    for token in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed" * 9}):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | token
        code = f"import ray; ray.init(address={address!r}); print('came in')"
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        print("stranger:", done.returncode != 0, "came in" in done.stdout, "Unauthenticated" in done.stderr)
# Ray keeps the first token.
with Supervisor(RayTransport(named, address="local", reachable=True), 1, depth=1) as service:
    print("once more:", service.name)
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
