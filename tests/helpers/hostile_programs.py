"""Programs that attack the grader or the machine, by expected outcome. `f` is right only if the attack works."""

from __future__ import annotations

from tests.helpers import hostile_forgeries, hostile_resources, hostile_system

TIMEOUT = hostile_resources.TIMEOUT
FAILED = (
    hostile_resources.FAILED
    | hostile_system.PROCESSES_AND_NETWORK
    | hostile_system.FILES
    | hostile_system.SERVER_AND_KERNEL
    | hostile_forgeries.FORGERIES
)
