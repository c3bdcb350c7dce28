"""Level `namespaces`: a process tree of its own, in a file system made for it, without network.

    unshare -> fork: process 1 of the tree -> tmpfs as root, read-only binds, pivot_root

When process 1 dies, its tree dies, and the tmpfs goes with the last process. As root, the tree gets
a unique user id, so that its processes are counted separately.
"""

from __future__ import annotations

import os

from .kernel import die_with_parent, syscall

TYPE_CHECKING = False  # `typing` at run time costs more than all the other imports
if TYPE_CHECKING:
    from typing import Any

MOUNT, UMOUNT2, PIVOT_ROOT, UNSHARE, MOUNT_SETATTR = 165, 166, 155, 272, 442
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
RDONLY, NOSUID, NODEV, AT_RECURSIVE = 1, 2, 4, 0x8000
NEW_ROOT = b"/proc"
"""mount point of the new root, in its own mount namespace; /proc exists everywhere and holds no
file of Python"""
FIRST_UID, NOBODY = 0x70000000, 65534


def enter(spec: dict[str, Any]) -> None:
    """Return as process 1 of new namespaces; the calling process waits for its end and exits."""
    root = os.geteuid() == 0
    flags = NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | NEWCGROUP
    uid, gid, unique = os.getuid(), os.getgid(), FIRST_UID + os.getpid()
    syscall("unshare", UNSHARE, flags if root else flags | NEWUSER)
    if not root:
        maps = {"setgroups": "deny", "uid_map": f"{NOBODY} {uid} 1", "gid_map": f"{NOBODY} {gid} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    die_with_parent()
    _build(spec)
    if root:
        os.setgroups([])
        try:
            os.setresgid(unique, unique, unique)
            os.setresuid(unique, unique, unique)
        except OSError:  # a container that maps few user ids
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        die_with_parent()  # changing user ids resets this setting


def _build(spec: dict[str, Any]) -> None:
    _mount(b"none", b"/", b"", MS_REC | MS_PRIVATE, b"")
    _mount(b"tmpfs", NEW_ROOT, b"tmpfs", NOSUID | NODEV, b"mode=0755,size=1m,nr_inodes=512")
    os.mkdir(NEW_ROOT + b"/tmp")
    options = f"mode=1777,size={spec['files']},nr_inodes={spec['inodes']}".encode()
    _mount(b"tmpfs", NEW_ROOT + b"/tmp", b"tmpfs", NOSUID | NODEV, options)
    for path in (*spec["read"], "/dev/null"):
        _show(os.fsencode(path))
    os.chdir(NEW_ROOT)
    syscall("pivot_root", PIVOT_ROOT, b".", b".")
    syscall("umount", UMOUNT2, b".", MNT_DETACH)
    _protect(b"/", RDONLY, 0)
    os.chdir("/tmp")


def _show(path: bytes) -> None:
    """Make `path` of the host readable in the new root; symbolic links stay links."""
    target = NEW_ROOT + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT))
    _mount(path, target, b"", MS_BIND | MS_REC, b"")
    if path != b"/dev/null":
        _protect(target, RDONLY | NOSUID | NODEV, AT_RECURSIVE)


def _mount(source: bytes, target: bytes, kind: bytes, flags: int, options: bytes) -> None:
    syscall(f"mount {os.fsdecode(target)}", MOUNT, source, target, kind, flags, options)


def _protect(path: bytes, attributes: int, how: int) -> None:
    import ctypes

    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    syscall(f"mount_setattr {os.fsdecode(path)}", MOUNT_SETATTR, -100, path, how, values, 32)
