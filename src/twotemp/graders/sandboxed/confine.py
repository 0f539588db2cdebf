"""Restrict a process: resource limits, a list of allowed system calls, and (without a mount namespace) a list of
readable paths. Pure ctypes, no library.

A system call that is not on the list fails as if the kernel did not have it. The list deliberately lacks all calls
that start a process or thread, run a file, open a socket, signal, trace or limit another process, change the
metadata of a file, mount, make a namespace, or yield the core (a program that did nothing else would look as if it
were kept from computing).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterable

_LIMITS = {
    resource.RLIMIT_AS: 1 << 30,
    resource.RLIMIT_STACK: 64 << 20,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_CORE: 0,
}

# name: (x86_64, aarch64); -1 where the architecture does not have it.
# fmt: off
_ALLOWED = {
    # memory
    "brk": (12, 214), "madvise": (28, 233), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216),
    "munmap": (11, 215),
    # files, as far as the mount namespace or Landlock lets them
    "access": (21, -1), "close": (3, 57), "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24),
    "faccessat": (269, 48), "faccessat2": (439, 439), "fstat": (5, 80), "getcwd": (79, 17),
    "getdents64": (217, 61), "lseek": (8, 62), "lstat": (6, -1), "newfstatat": (262, 79), "open": (2, -1),
    "openat": (257, 56), "pipe2": (293, 59), "poll": (7, -1), "ppoll": (271, 73), "pread64": (17, 67),
    "pselect6": (270, 72), "read": (0, 63), "readlink": (89, -1), "readlinkat": (267, 78),
    "readv": (19, 65), "select": (23, -1), "stat": (4, -1), "statx": (332, 291), "write": (1, 64),
    "writev": (20, 66),
    # signals and timers of the process itself
    "alarm": (37, -1), "getitimer": (36, 102), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "setitimer": (38, 103), "sigaltstack": (131, 132),
    # time
    "clock_getres": (229, 114), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115),
    "gettimeofday": (96, 169), "nanosleep": (35, 101), "time": (201, -1), "times": (100, 153),
    # the process itself
    "exit": (60, 93), "exit_group": (231, 94), "futex": (202, 98), "getegid": (108, 177),
    "geteuid": (107, 175), "getgid": (104, 176), "getpid": (39, 172), "getppid": (110, 173),
    "getrandom": (318, 278), "getrusage": (98, 165), "gettid": (186, 178), "getuid": (102, 174),
    "restart_syscall": (219, 128), "sched_getaffinity": (204, 123), "uname": (63, 160),
}
# fmt: on
_FCNTL = (72, 25)
# Not F_SETOWN, F_SETSIG: with them a pipe kills another process.
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH_*

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: LD|W|ABS, JMP|JEQ|K, JMP|JGE|K, RET|K
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000  # SECCOMP_RET_*
_NUMBER, _ARCHITECTURE, _SECOND_ARGUMENT = 0, 4, 24  # offsets in struct seccomp_data

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_libc = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _prctl(what: str, option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(ctypes.c_int(option), *words), what)


def seccomp_filter() -> Filter:
    """Return the filter of system calls for this architecture."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    column, audit = _ARCHITECTURES[machine]
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL)]
    program += [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]  # the x32 ABI
    for number in (numbers[column] for numbers in _ALLOWED.values()):
        if number >= 0:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    program += [(_EQUAL, 0, 2 * len(_FCNTL_COMMANDS) + 1, _FCNTL[column]), (_LOAD, 0, 0, _SECOND_ARGUMENT)]
    for command in _FCNTL_COMMANDS:
        program += [(_EQUAL, 0, 1, command), (_RETURN, 0, 0, _ALLOW)]
    program.append((_RETURN, 0, 0, _ERROR | errno.ENOSYS))
    return Filter(len(program), b"".join(struct.pack("<HBBI", *instruction) for instruction in program))


def enter(seccomp: Filter, seconds: float, null: int, keep: Iterable[int]) -> None:
    """Confine this freshly forked process irrevocably: its files, its time, its system calls.

    Standard input stays open: the caller reads its part of the request from it, then closes it.

    Args:
        seccomp: The filter of system calls.
        seconds: The program's time limit.
        null: File descriptor of /dev/null, which becomes standard output and standard error.
        keep: The only other file descriptors that stay open.
    """
    die_with_parent()
    os.dup2(null, 1)
    os.dup2(null, 2)
    last = 2
    for descriptor in (*sorted({null, *keep}), 1024):
        os.closerange(last + 1, descriptor)
        last = descriptor
    _limit(resource.RLIMIT_CPU, int(seconds) + 2)  # only a fallback: the server's clock ends it first
    _prctl("seccomp", _PR_SET_SECCOMP, 2, ctypes.addressof(seccomp))


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    _prctl("PDEATHSIG", _PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(kind: int, limit: int) -> None:
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def drop_privileges(readable: list[str] | None) -> None:
    """Limit the server and all processes it forks, and take all privileges from them.

    Args:
        readable: The paths that Landlock leaves readable; None to do without Landlock.
    """
    for kind, limit in _LIMITS.items():
        _limit(kind, limit)
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)
    header = struct.pack("<Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    _check(_libc.capset(header, bytes(24)), "capset")  # nothing allowed
    if readable is not None:
        _landlock(readable)


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_FILE_RIGHTS = 0b111  # execute, write, read
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3


def _syscall(what: str, number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *words), what)


def _landlock(readable: list[str]) -> None:
    """Allow reading below `readable`, /dev/null and the random devices, and nothing else of the file system."""
    version = _syscall("Landlock", _CREATE_RULESET, None, 0, 1)
    rights = 13 + (version >= 2) + (version >= 3) + (version >= 5)  # how many kinds of access it knows
    handled = struct.pack("<Q", (1 << rights) - 1)
    ruleset = _syscall("Landlock", _CREATE_RULESET, handled, len(handled), 0)
    allowed = [(path, _READ_FILE | _READ_DIR) for path in readable]
    allowed += [
        ("/dev/null", _READ_FILE | _WRITE_FILE),
        ("/dev/urandom", _READ_FILE),
        ("/dev/random", _READ_FILE),
    ]
    for path, access in allowed:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if not os.path.isdir(path):
            access &= _FILE_RIGHTS
        rule = struct.pack("<Qi", access, descriptor)
        _syscall(f"Landlock {path}", _ADD_RULE, ruleset, 1, rule, 0)
        os.close(descriptor)
    _syscall("Landlock", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
