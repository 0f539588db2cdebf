"""What runs inside the sandbox: the standard library only, and nothing of twotemp outside this folder.

server     a warm fork server; forks the two processes below for each request and holds the clock
confine    what a process may still do: rlimits, seccomp, Landlock
candidate  the process that runs the program a model wrote
judge      the process that runs the tests, and never a line of that program
values     how the two exchange plain values
"""
