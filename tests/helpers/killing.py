"""Kill a command at random moments and start it again, as a machine that goes down would."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Sequence


def kill_at_random(
    command: Sequence[str], *, kills: int, longest: float, seed: int = 0, ready: str | None = None
) -> int:
    """Start `command` up to `kills` times, each time ended by SIGKILL after a random time; returns how many hit.

    The time, at most `longest` seconds, runs from the start, or from the first output line that begins with
    `ready`. A command that ends by itself before its kill must have succeeded.
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
