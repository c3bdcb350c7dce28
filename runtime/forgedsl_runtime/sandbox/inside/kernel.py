"""Linux system calls that confine a process, by ctypes: capabilities, rlimits, Landlock, seccomp.

The process cannot undo these restrictions. Numbers are those of x86-64.
"""

from __future__ import annotations

import ctypes
import os
import resource

TYPE_CHECKING = False  # `typing` at run time costs more than all the other imports
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

EPERM, EAGAIN, EACCES, ENOSYS = 1, 11, 13, 38
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
PR_SET_DUMPABLE = 4
CAPSET, PRCTL, LANDLOCK = 126, 157, 444
SIGKILL, CAP_SETPCAP = 9, 1 << 8

NEVER = {
    "ptrace": 101, "syslog": 103, "setpriority": 141, "sched_setparam": 142,
    "sched_setscheduler": 144, "pivot_root": 155, "chroot": 161, "acct": 163, "mount": 165,
    "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
    "setdomainname": 171, "init_module": 175, "delete_module": 176, "quotactl": 179,
    "sched_setaffinity": 203, "add_key": 248, "request_key": 249, "keyctl": 250,
    "ioprio_set": 251, "migrate_pages": 256, "unshare": 272, "move_pages": 279,
    "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
    "sched_setattr": 314, "kexec_load": 246, "kexec_file_load": 320, "bpf": 321,
    "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "pidfd_open": 434, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442,
    # These allocate memory that none of our limits counts.
    "shmget": 29, "msgget": 68, "semget": 64, "memfd_create": 319, "memfd_secret": 447,
}  # fmt: skip
FORKS = {"fork": 57, "vfork": 58}
SIGNALS = {"tkill": 200, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "pidfd_send_signal": 424}
NETWORK = {"socket": 41, "connect": 42, "bind": 49, "listen": 50}
WRITES = {
    "truncate": 76, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
    "symlink": 88, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94,
    "utime": 132, "mknod": 133, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
    "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "utimes": 235, "mq_open": 240,
    "mkdirat": 258, "mknodat": 259, "fchownat": 260, "futimesat": 261, "unlinkat": 263,
    "renameat": 264, "linkat": 265, "symlinkat": 266, "fchmodat": 268, "utimensat": 280,
    "renameat2": 316, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466,
}  # fmt: skip
OPEN, CLONE, KILL, OPENAT, TGKILL, PRLIMIT, CLONE3, OPENAT2 = 2, 56, 62, 257, 234, 302, 435, 437
CLONE_THREAD, CLONE_NEW = 0x10000, 0x7E020000
O_WRITE = 0x1 | 0x2 | 0x40 | 0x200 | 0x400000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, __O_TMPFILE"""

libc = ctypes.CDLL(None, use_errno=True)


def syscall(what: str, number: int, *args: Any) -> int:
    """Make a system call and return its result.

    Raises:
        OSError: it failed; `what` names the call.
    """
    given = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    found = int(libc.syscall(ctypes.c_long(number), *given))
    if found < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return found


def prctl(option: int, *args: Any) -> None:
    """Call prctl(2)."""
    syscall(f"prctl {option}", PRCTL, option, *args, *[0] * (4 - len(args)))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, SIGKILL)


def hide() -> None:
    """Forbid processes of the same user to read this one's memory (the judge holds expected
    values)."""
    prctl(PR_SET_DUMPABLE, 0)


def limit(limits: Mapping[str, int]) -> None:
    """Set soft and hard rlimits by name (`AS`), never above the limits in force."""
    for name, wanted in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(number, (value, value))


def drop_privileges() -> None:
    """Drop all capabilities, and forbid to gain privileges by executing a file."""
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    syscall("capget", CAPSET - 1, header, data)
    if data[0] & CAP_SETPCAP:  # without it, the bounding set cannot be changed, and is harmless
        for capability in range(64):
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:  # this kernel has fewer capabilities
                continue
    syscall("capset", CAPSET, header, (ctypes.c_uint32 * 6)())
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def restrict_to_reading(paths: Iterable[str]) -> None:
    """Forbid to open files, except for reading below `paths` (Landlock)."""
    everything, reading = 0x1FFF, 0x4 | 0x8
    rules = syscall("landlock", LANDLOCK, (ctypes.c_uint64 * 1)(everything), 8, 0)
    for path in paths:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = reading.to_bytes(8, "little") + place.to_bytes(4, "little")
        syscall("landlock_add_rule", LANDLOCK + 1, rules, 1, ctypes.c_char_p(rule), 0)
        os.close(place)
    syscall("landlock_restrict_self", LANDLOCK + 2, rules, 0)
    os.close(rules)


def filter_calls(*, alone: bool, private: bool) -> None:
    """Refuse system calls from now on (seccomp). `alone`: no child processes. `private`: the
    process has its own namespaces for processes, files and network. Without them it may only signal
    itself, open no socket and write no file."""
    rules = [_deny(number, EPERM) for number in NEVER.values()]
    rules += [_deny(CLONE3, ENOSYS), _deny(OPENAT2, ENOSYS)]
    rules.append(_deny(CLONE, EPERM, 0, JSET, CLONE_NEW))
    rules.append(_deny(PRCTL, EPERM, 0, JEQ, PR_SET_PDEATHSIG))  # must die with its parent
    if alone:
        rules += [_deny(number, EAGAIN) for number in FORKS.values()]
        rules.append(_deny(CLONE, EAGAIN, 0, JSET, CLONE_THREAD, unless=True))
    if not private:
        rules += [_deny(number, EPERM) for number in (*SIGNALS.values(), *NETWORK.values())]
        rules += [_deny(number, EACCES) for number in WRITES.values()]
        rules += [_deny(OPEN, EACCES, 1, JSET, O_WRITE), _deny(OPENAT, EACCES, 2, JSET, O_WRITE)]
        rules += [_deny(n, EPERM, 0, JEQ, os.getpid(), unless=True) for n in (KILL, TGKILL)]
        rules.append(_deny(PRLIMIT, EPERM, 0, JEQ, 0, unless=True))
    text = b"".join([
        _code(LOAD, 4), _code(JEQ, 0xC000003E, 1, 0), _code(RETURN, KILL_PROCESS),  # x86-64
        _code(LOAD, 0), _code(JGE, 0x40000000, 0, 1), _code(RETURN, ERRNO | ENOSYS),  # x32
        *rules, _code(RETURN, ALLOW),
    ])  # fmt: skip
    buffer = ctypes.create_string_buffer(text, len(text))
    program = (ctypes.c_uint64 * 2)(len(text) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, 2, program)


LOAD, JEQ, JGE, JSET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
KILL_PROCESS, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def _code(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Encode one instruction of a filter (struct sock_filter)."""
    return code.to_bytes(2, "little") + bytes([then, otherwise]) + value.to_bytes(4, "little")


def _deny(
    number: int, error: int, arg: int | None = None, test: int = JEQ, value: int = 0, *,
    unless: bool = False,
) -> bytes:  # fmt: skip
    """Return filter instructions that refuse system call `number`. With `arg`, they refuse it only
    if this argument passes the test; with `unless` too, only if it fails the test. They expect the
    call's number in the accumulator, and leave it there."""
    refuse = _code(RETURN, ERRNO | error)
    if arg is None:
        return _code(JEQ, number, 0, 1) + refuse
    check = _code(test, value, *((1, 0) if unless else (0, 1)))
    return _code(JEQ, number, 0, 4) + _code(LOAD, 16 + 8 * arg) + check + refuse + _code(LOAD, 0)
