"""Kill a command at random times and start it again, as crashes of a machine would."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Sequence


def kill_at_random(
    command: Sequence[str], *, kills: int, longest: float, seed: int = 0, ready: str | None = None
) -> int:
    """Start a command several times and kill it each time after a random time.

    A command that ends before it is killed must have succeeded.

    Args:
        command: the command.
        kills: how many times to start and kill it.
        longest: the longest time until the kill, in seconds.
        seed: the seed of the random times.
        ready: measure the time from the first line of output that begins with this, instead of from the start.

    Returns:
        How many times the command was killed before it ended.
    """
    rng = random.Random(seed)
    hits = 0
    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if ready is not None:
            while (line := process.stdout.readline()) and not line.startswith(ready):
                pass
        time.sleep(rng.uniform(0, longest))
        process.kill()
        _, errors = process.communicate()
        hits += process.returncode == -signal.SIGKILL
        assert process.returncode in (0, -signal.SIGKILL), errors
    return hits
