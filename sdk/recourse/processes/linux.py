"""What only Linux offers, by way of `prctl`: finding all descendants, dying with the parent, giving up privileges."""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

IS_LINUX = sys.platform == "linux"
# also children that end with another signal than SIGCHLD, as clone() can make them
ANY_CHILD = 0x40000000 if IS_LINUX else 0

_libc = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def become_subreaper() -> None:
    """From now on, descendants whose parent has ended become children of this process, whatever group they are in."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal: int) -> None:
    """This process gets the signal when its parent, more exactly the thread that made it, ends. Lost by a change of
    user: call it afterwards.
    """
    _prctl(PR_SET_PDEATHSIG, signal)


def no_new_privileges() -> None:
    """No program started from here gains privileges by its file: setuid bits and capabilities of files do nothing."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    """Raises OSError. Elsewhere than on Linux it does nothing."""
    if _libc is None:
        return
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
