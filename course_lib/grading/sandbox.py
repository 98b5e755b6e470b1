"""Linux: take away what a submission never needs, with no special rights asked for.

seccomp refuses new processes, sockets, signals to others and every way into another process; Landlock refuses all
writes and hides the files that hold the answers. Elsewhere, or where a kernel or container lacks one of them, the
child runs with less and the report says so. This is a fence for a class, not a wall against a determined attacker:
run the submissions of strangers in a container or a virtual machine as well.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

import course_lib

try:
    import pyseccomp as seccomp  # here and not in each child: finding libseccomp takes a subprocess
except (ImportError, RuntimeError, OSError):
    seccomp = None

SPARE_PROCESSES = 32
NO_NEW_PRIVS, SET_PDEATHSIG, SIGKILL = 38, 1, 9
CLONE_THREAD = 0x10000
REFUSED = (
    "fork", "vfork", "execve", "execveat", "setsid",
    "socket", "io_uring_setup",
    "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_open", "pidfd_getfd", "pidfd_send_signal",
    "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "setrlimit", "setpriority",
    "mount", "umount2", "unshare", "setns", "pivot_root", "chroot", "bpf", "perf_event_open", "userfaultfd", "keyctl",
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat", "setxattr", "lsetxattr",
)  # fmt: skip

# Landlock (Linux 5.13, system calls 444-446 on every architecture; linux/landlock.h).
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
ACCESS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # ABI version -> rights it knows; 16 from version 5 on


def isolate() -> dict[str, str]:
    """Restrict this process for good; returns what holds, for the report: network, processes, files."""
    if sys.platform != "linux":
        weak = f"not isolated on {sys.platform}"
        return {"network": weak, "processes": f"{weak}; {_limit_processes()}", "files": weak}
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    weak = _seccomp()
    report = {
        "network": weak or "no sockets (seccomp)",
        "processes": f"{weak}; {_limit_processes()}" if weak else "no new processes, no signals to others (seccomp)",
    }
    files = _landlock(libc)  # last: it hides what _limit_processes reads
    _drop_capabilities(libc)
    return report | {
        "files": files or "read-only, without the grader's cases and the solutions (Landlock)",
    }


def _seccomp() -> str | None:
    """Load the system-call filter; returns why not, when it cannot."""
    if seccomp is None:
        return "not isolated: pyseccomp or libseccomp is missing"
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    refuse = seccomp.ERRNO(errno.EPERM)
    for name in REFUSED:
        try:
            rules.add_rule(refuse, name)
        except OSError:
            pass  # this architecture has no such call (arm64 has no fork and no vfork)
    # clone3 passes its flags in memory, out of a filter's sight; on ENOSYS the C library falls back to clone.
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    rules.add_rule(refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_THREAD, 0))
    rules.add_rule(refuse, "prlimit64", seccomp.Arg(2, seccomp.NE, 0))
    for name in ("kill", "tgkill"):
        rules.add_rule(refuse, name, seccomp.Arg(0, seccomp.NE, os.getpid()))
    try:
        rules.load()
    except OSError as error:
        return f"not isolated: the kernel refused the seccomp filter ({error.strerror})"
    return None


def _landlock(libc: ctypes.CDLL) -> str | None:
    """Allow reading what Python, torch and the engine need, and nothing else; returns why not, when it cannot."""
    version = libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    access = ctypes.c_uint64((1 << ACCESS_BITS.get(version, 16)) - 1)
    ruleset = libc.syscall(LANDLOCK_CREATE, ctypes.byref(access), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return "not isolated: this kernel has no Landlock"
    for path, rights in _readable():
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # a sys.path entry that does not exist
        if not os.path.isdir(path):
            rights &= READ_FILE | EXECUTE | WRITE_FILE
        rule = rights.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder)  # a packed C struct
        libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(handle)
    failed = libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return "not isolated: the kernel refused Landlock" if failed else None


def _readable() -> list[tuple[str, int]]:
    """(path, rights) of what may be opened. Folders on the way to this package are listed entry by entry."""
    read = READ_FILE | READ_DIR | EXECUTE
    package = Path(course_lib.__file__).resolve().parent
    hidden = {package / "checks", package / "grading"}
    hidden |= {package.parent / name for name in ("solutions", "exercises", "tests", ".git")}
    found = [("/dev/null", READ_FILE | WRITE_FILE), ("/dev/urandom", READ_FILE), ("/proc/cpuinfo", READ_FILE)]
    system = ["/usr", "/lib", "/lib64", "/etc", "/sys/devices/system"]
    todo = {Path(entry).resolve() for entry in [*system, *sys.path, sys.prefix, sys.base_prefix] if entry}
    while todo:
        path = todo.pop()
        if path in hidden:
            continue
        if path == package or path in package.parents:
            if path.is_dir():
                todo |= set(path.iterdir())
        else:
            found.append((str(path), read))
    return found


def _limit_processes() -> str:
    """Where new processes cannot be refused, bound their number; returns what holds, for the report."""
    if sys.platform == "win32":
        return "their number is not limited"
    import resource

    import psutil

    # The limit counts all of the user's processes, on Linux their threads, and root is exempt from it there.
    user = os.getuid()
    threads = sum(
        process.info["num_threads"] or 1
        for process in psutil.process_iter(["uids", "num_threads"])
        if process.info["uids"] and process.info["uids"].real == user
    )
    limit = threads + SPARE_PROCESSES
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    return f"at most {SPARE_PROCESSES} more at once (RLIMIT_NPROC), unless the grader runs as root"


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Root without capabilities: it cannot raise its limits again, nor read what its user id may not."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
