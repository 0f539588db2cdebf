"""What runs inside the sandbox: the standard library only, and nothing of twotemp outside this folder.

server     a warm fork server; forks the two processes below for each request and holds the clock
confine    what a process may still do: rlimits, seccomp, Landlock
candidate  the process that runs the program a model wrote
judge      the process that runs the tests, and never a line of that program
mirrors    the judge's stand-ins for objects and classes of the program's
channel    how the two ask each other
values     which values cross as themselves
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<dQQ")  # seconds, bytes of code, bytes of tests
# Times a program's own time after which the wall clock ends it: on an idle machine, and on any.
PATIENCE, FAR = 4.0, 12.0
