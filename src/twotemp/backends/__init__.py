"""Where samples are drawn: in this process, or by workers on this machine or a Ray cluster.

`local` has the two protocols, `Backend` for batch work and `Service` for live work, and `LocalBackend` and
`LocalService`, which run the engine in this process. `WorkerPool` is a backend and `Supervisor` a service whose model
is loaded by workers, which a `Transport` starts and talks to.
"""

from twotemp.backends.local import Backend, Event, Handle, Service

__all__ = ["Backend", "Event", "Handle", "Service"]
