"""What `up` does, step by step: from a data directory to a console that answers, and back to nothing."""

from __future__ import annotations

import fcntl
import http.client
import importlib
import importlib.util
import os
import shutil
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import structlog
from django.conf import settings
from django.core import checks
from django.core.management import call_command
from django.db import OperationalError, connections

from config import embedded, first_login
from config.settings import env
from config.supervisor import Service, StopRequestedError, Supervisor

log = structlog.get_logger("up")

READY_SECONDS = 90.0
REFUSED = 2
FAILED = 1
WORKER = ["worker", "--without-gossip", "--without-mingle", "-l", "warning"]


class RefusalError(Exception):
    """`up` cannot start like this; the message is one sentence for the operator."""


@dataclass
class Console:
    """One `up`: its port, its number of worker processes, and whether the samples run."""

    port: int
    workers: int
    samples: bool

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT. The exit code: 0 stopped as asked, 1 did not get ready, 2 refused."""
        try:
            with ExitStack() as stack:
                return self._run(stack)
        except RefusalError as refusal:
            sys.stderr.write(f"{refusal}\n")
            return REFUSED
        except StopRequestedError:
            return 0

    def _run(self, stack: ExitStack) -> int:
        if self.workers < 1:
            raise RefusalError("--workers must be at least 1.")
        data_dir = Path(settings.DATA_DIR)
        stack.callback(os.close, lock_data_directory(data_dir))
        listener = stack.enter_context(listen(env.host, self.port))
        kept_open: tuple[int, ...] = ()
        if env.embedded:
            attachment = embedded.hold(data_dir)
            stack.callback(attachment.release)
            kept_open = (attachment.lock,)
        supervisor = stack.enter_context(Supervisor(kept_open=kept_open))
        if env.embedded:
            supervisor.start(database(data_dir))
            try:
                embedded.wait_until_ready(data_dir)
            except embedded.EmbeddedDatabaseError as error:
                raise RefusalError(str(error)) from error
        refuse_unsafe_settings()
        call_command("migrate", interactive=False, verbosity=0)
        login = first_login.ensure(data_dir)
        supervisor.heed_stop()
        # Every process from here on has connections of its own; this one needs none to watch them.
        connections.close_all()
        samples = self._samples()
        if samples:
            # All processes must agree on which handlers this console runs.
            os.environ["RECOURSE_HANDLERS"] = ",".join([*env.handlers, *samples.HANDLERS])
        if not (env.public_url or env.production):
            os.environ["RECOURSE_PUBLIC_URL"] = self.url
        for service in (web(listener, data_dir), clock(), workers(self.workers), beat()):
            supervisor.start(service)
        if not supervisor.wait_for(self._ready, seconds=READY_SECONDS):
            log.error("the web server did not get ready", seconds=READY_SECONDS)
            return FAILED
        say(f"ready {self.url}")
        say(login)
        if samples:
            self._start_samples(supervisor, samples)
        supervisor.run()
        return 0

    @property
    def url(self) -> str:
        return f"http://{env.host}:{self.port}"

    def _ready(self) -> bool:
        """Whether /readyz answers 200, asked under a name that the console answers to."""
        name = next((host for host in settings.ALLOWED_HOSTS if "*" not in host and not host.startswith(".")), None)
        address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(env.host, env.host)  # noqa: S104 - read, not bound
        connection = http.client.HTTPConnection(address, self.port, timeout=5)
        try:
            connection.request("GET", "/readyz", headers={"Host": name or f"{address}:{self.port}"})
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _samples(self) -> ModuleType | None:
        wanted = self.samples and importlib.util.find_spec("samples.up")
        return importlib.import_module("samples.up") if wanted else None

    def _start_samples(self, supervisor: Supervisor, samples: ModuleType) -> None:
        seed = "import sys, django; django.setup(); from samples.up import seed; seed(sys.argv[1])"
        code = supervisor.run_once(Service("samples", [sys.executable, "-c", seed, self.url], {"PYTHONPATH": _path()}))
        if code != 0:
            log.error("the sample data could not be made; going on without the samples", code=code)
            return
        for service in samples.services(self.url):
            supervisor.start(service)
        connections.close_all()


def lock_data_directory(data_dir: Path) -> int:
    """Claim `data_dir` for this process. The lock dies with it, so that a crash leaves nothing to clean up."""
    data_dir.mkdir(parents=True, exist_ok=True)
    handle = os.open(data_dir / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 20).decode().strip()
        os.close(handle)
        raise RefusalError(
            f"{data_dir} is served by another `up` (process {holder}): stop it first, or choose another --data."
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle


def listen(host: str, port: int) -> socket.socket:
    """Take the port now: a taken one is refused before anything starts, and no crash of the web server loses it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise RefusalError(f"Cannot listen on {host}:{port} ({error}): choose another --port.") from error
    listener.listen(2048)
    return listener


def refuse_unsafe_settings() -> None:
    """Run the system checks, those of the database included. Raises RefusalError with all errors, one per line."""
    try:
        found = checks.run_checks(databases=["default"])
    except OperationalError as error:
        raise RefusalError(f"The database does not answer: {error}") from error
    for message in found:
        if checks.INFO <= message.level < checks.ERROR:
            log.warning(message.msg, id=message.id)
    errors = [f"{message.id}: {message.msg} {message.hint or ''}".rstrip() for message in found if message.is_serious()]
    if errors:
        raise RefusalError("\n".join(errors))


def database(data_dir: Path) -> Service:
    return Service(
        "database", embedded.keeper_command(data_dir), stop_seconds=embedded.STOP_SECONDS + 6, stop_last=True
    )


def web(listener: socket.socket, data_dir: Path) -> Service:
    counters = data_dir / "metrics"
    # Counters of earlier processes would be added to the new ones.
    shutil.rmtree(counters, ignore_errors=True)
    counters.mkdir()
    extra = {
        "RECOURSE_PROCESS": "web",
        "PROMETHEUS_MULTIPROC_DIR": str(counters),
        "RECOURSE_LISTEN_FD": str(listener.fileno()),
    }
    argv = [sys.executable, "-m", "gunicorn", "-c", "python:config.web_server", "config.wsgi:application"]
    return Service("web", argv, _environment(extra), fds=(listener.fileno(),))


def clock() -> Service:
    """The worker for what time alone does, and for notifications: apart from the others, so that no handler can hold up
    an expiry or a message. Messages are sent on threads, so that no receiver can either."""
    queues = ["-Q", "recourse.clock,recourse.notices"]
    return _celery("clock", "config.celery", [*WORKER, "-P", "solo", *queues, "-n", "clock@%h"])


def workers(count: int) -> Service:
    queues = ["-Q", "recourse,recourse.handlers"]
    return _celery("workers", "config.celery", [*WORKER, "-c", str(count), *queues, "-n", "workers@%h"])


def beat() -> Service:
    return _celery("beat", "config.beat", ["beat", "--pidfile=", "-l", "warning"])


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _celery(name: str, app: str, arguments: list[str]) -> Service:
    process = "beat" if name == "beat" else "worker"
    argv = [sys.executable, "-m", "celery", "-q", "-A", app, *arguments]
    return Service(name, argv, _environment({"RECOURSE_PROCESS": process}))


def _environment(extra: dict[str, str]) -> dict[str, str]:
    return {"RECOURSE_DATA": str(settings.DATA_DIR), "PYTHONPATH": _path(), "PYTHONUNBUFFERED": "1"} | extra


def _path() -> str:
    own = [str(settings.BASE_DIR), str(settings.BASE_DIR / "sdk")]
    return os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
