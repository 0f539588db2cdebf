"""Programs that attack the machine: processes, network, files, the server, the kernel."""

from __future__ import annotations

from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"

PROCESSES_AND_NETWORK: dict[str, str] = {
    # processes
    "fork": """
        import os
        def f(x):
            if os.fork() == 0:
                os._exit(0)
            return 2 * x
    """,
    "fork bomb": """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                break
        def f(x):
            return 0
    """,
    "daemon": """
        import os, time
        def f(x):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(1000)
                os._exit(0)
            return 2 * x
    """,
    "fork by system call": """
        import ctypes
        def f(x):
            pid = ctypes.CDLL(None).syscall(57)
            return 2 * x if pid >= 0 else 0
    """,
    "clone3": """
        import ctypes
        def f(x):
            arguments = (ctypes.c_uint64 * 11)()
            pid = ctypes.CDLL(None).syscall(435, arguments, 88)
            return 2 * x if pid >= 0 else 0
    """,
    "thread": """
        import threading
        def f(x):
            threading.Thread(target=int).start()
            return 2 * x
    """,
    "thread bomb": """
        import threading, time
        threading.stack_size(32768)
        def f(x):
            for _ in range(100_000):
                threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
            return 2 * x
    """,
    "subprocess": """
        import subprocess
        def f(x):
            subprocess.run(["true"], check=True)
            return 2 * x
    """,
    "shell": """
        import os
        def f(x):
            return 2 * x if os.system("true") == 0 else 0
    """,
    "exec": """
        import os
        def f(x):
            os.execv("/usr/bin/env", ["env"])
    """,
    "multiprocessing": """
        import multiprocessing
        def f(x):
            process = multiprocessing.get_context("fork").Process(target=int)
            process.start()
            process.join()
            return 2 * x
    """,
    # network
    "internet socket": """
        import socket
        def f(x):
            socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            return 2 * x
    """,
    "unix socket": """
        import socket
        def f(x):
            socket.socketpair()
            return 2 * x
    """,
    "name lookup": """
        import socket
        def f(x):
            socket.getaddrinfo("localhost", 80)
            socket.create_server(("127.0.0.1", 0))
            return 2 * x
    """,
    "io_uring": """
        import ctypes
        def f(x):
            parameters = (ctypes.c_uint32 * 64)()
            return 2 * x if ctypes.CDLL(None).syscall(425, 4, parameters) >= 0 else 0
    """,
}

FILES: dict[str, str] = {
    # files
    "read /etc": """
        def f(x):
            open("/etc/passwd").read()
            return 2 * x
    """,
    "read the home folders": """
        import os
        def f(x):
            return len(os.listdir("/root") + os.listdir("/home")) and 2 * x
    """,
    "read this repository": f"""
        def f(x):
            return len(open({str(SRC / "twotemp" / "errors.py")!r}).read()) and 2 * x
    """,
    "read /proc": """
        import os
        def f(x):
            open(f"/proc/{os.getppid()}/environ").read()
            return 2 * x
    """,
    "list /proc": """
        import os
        def f(x):
            return len(os.listdir("/proc")) and 2 * x
    """,
    "secrets in the environment": """
        import os
        def f(x):
            return 2 * x if "SECRET_OF_THE_TEST" in os.environ else 0
    """,
    "write": """
        import os
        def f(x):
            for folder in ("/tmp", "/dev/shm", "/var/tmp", ".", "/", "/dev", os.path.dirname(os.__file__)):
                try:
                    open(folder + "/written", "w").write("x")
                    return 2 * x
                except OSError:
                    pass
    """,
    "fill the disk": """
        import tempfile
        def f(x):
            with tempfile.TemporaryFile() as file:
                while True:
                    file.write(b" " * (1 << 20))
    """,
    "delete, rename, chmod": """
        import os
        def f(x):
            for attack in (
                lambda: os.unlink(os.__file__),
                lambda: os.rename(os.__file__, os.__file__ + "x"),
                lambda: os.chmod(os.__file__, 0),
                lambda: os.utime(os.__file__, (0, 0)),
                lambda: os.mkdir("/tmp/made"),
                lambda: os.symlink("/etc", "/tmp/link"),
                lambda: os.mkfifo("/tmp/fifo"),
            ):
                try:
                    attack()
                    return 2 * x
                except OSError:
                    pass
    """,
    "memory file": """
        import os
        def f(x):
            os.memfd_create("x")
            return 2 * x
    """,
    "all descriptors": """
        import os
        held = []
        def f(x):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
    """,
}

SERVER_AND_KERNEL: dict[str, str] = {
    # other processes
    "kill the server": """
        import os, signal
        def f(x):
            os.kill(os.getppid(), signal.SIGKILL)
            return 2 * x
    """,
    "kill everything": """
        import os, signal
        def f(x):
            os.kill(-1, signal.SIGKILL)
            return 2 * x
    """,
    "kill through a pipe's owner": """
        import fcntl, os, signal
        def f(x):
            reader, writer = os.pipe()
            fcntl.fcntl(reader, fcntl.F_SETOWN, os.getppid())
            fcntl.fcntl(reader, 10, signal.SIGKILL)
            fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
            os.write(writer, b"x")
            return 2 * x
    """,
    "trace the server": """
        import ctypes, os
        def f(x):
            return 2 * x if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else 0
    """,
    "read the server's memory": """
        import ctypes, os
        def f(x):
            local, remote = (ctypes.c_uint64 * 2)(id(x), 8), (ctypes.c_uint64 * 2)(id(x), 8)
            got = ctypes.CDLL(None).process_vm_readv(os.getppid(), local, 1, remote, 1, 0)
            return 2 * x if got >= 0 else 0
    """,
    "limit the server": """
        import os, resource
        def f(x):
            resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))
            return 2 * x
    """,
    "slow the server down": """
        import os
        def f(x):
            os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)
            return 2 * x
    """,
    # getting out
    "raise its own limits": """
        import resource
        def f(x):
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return 2 * x
    """,
    "new namespace": """
        import ctypes
        def f(x):
            return 2 * x if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0
    """,
    "mount": """
        import ctypes
        def f(x):
            return 2 * x if ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else 0
    """,
    "become root": """
        import os
        def f(x):
            os.setresuid(0, 0, 0)
            return 2 * x
    """,
    "bpf, keys, performance counters": """
        import ctypes
        def f(x):
            call = ctypes.CDLL(None).syscall
            return 2 * x if max(call(321, 0, 0, 0), call(250, 0, -3, 1), call(298, 0, 0, -1, -1, 0)) >= 0 else 0
    """,
    "the 32-bit system calls": """
        import ctypes
        def f(x):
            return 2 * x if ctypes.CDLL(None).syscall(0x40000000 + 39) > 0 else 0
    """,
}
