"""What runs inside the sandbox: the standard library and the modules of this folder, nothing else of twotemp.

server     warm fork server; forks the two processes below for each request and measures their time
confine    restrictions of a process: rlimits, seccomp, Landlock
candidate  process that runs the program a model wrote
judge      process that runs the tests and never executes a line of that program
mirrors    the judge's stand-ins for objects and classes of the program
channel    frames in which the two processes question each other
values     values that cross by value
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<dQQ")  # seconds, bytes of code, bytes of tests
# The wall clock ends a program after this multiple of its time limit, on an idle machine and on any machine.
IDLE_WALL_FACTOR, BUSY_WALL_FACTOR = 4.0, 12.0
