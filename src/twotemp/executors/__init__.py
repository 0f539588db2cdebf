"""Who draws where one process is not enough: workers on this machine or on a Ray cluster, one supervisor for both."""

from twotemp.executors.processes import Processes
from twotemp.executors.supervisor import Supervisor
from twotemp.executors.worker import Loading

__all__ = ["Loading", "Processes", "Supervisor"]
