"""A handler that is a command: `command(["prog", "arg"])` runs it for each attempt, and ends all that it started.

The stage's input is its standard input, its output the stage's: JSON when it parses, else the text. Standard error
becomes log lines. Exit status 0 is success; every other end has an error code (`EXIT_3`, `SIGNALLED`, see docs/howto).
POSIX only; that all descendants are found and ended, on Linux only. Serves R33, R34, R38, R39, P58.
"""

from __future__ import annotations

import binascii
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recourse import clock
from recourse.context import StageContext
from recourse.errors import ConfigurationError, Release, Stopped
from recourse.results import Failure, Success

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEVER_PASSED = frozenset({"RECOURSE_API_KEY", "PIPELOGIQ_API_KEY", "RECOURSE_TOKEN"})
ERROR_MARK = "RECOURSE_ERROR "
# what a command is told of its attempt, as variables of its environment
ABOUT: dict[str, Callable[[StageContext], Any]] = {
    "RECOURSE_RUN_ID": lambda ctx: ctx.run_id,
    "RECOURSE_STAGE_ID": lambda ctx: ctx.stage_id,
    "RECOURSE_STAGE_NAME": lambda ctx: ctx.stage_name,
    "RECOURSE_EXECUTION_ID": lambda ctx: ctx.execution_id,
    "RECOURSE_ATTEMPT": lambda ctx: ctx.attempt,
    "RECOURSE_EPOCH": lambda ctx: ctx.epoch,
    "RECOURSE_IDEMPOTENCY_KEY": lambda ctx: ctx.idempotency_key,
    "RECOURSE_REQUEST_DIGEST": lambda ctx: ctx.job.request_digest or "",
    "RECOURSE_EFFECT_MODE": lambda ctx: ctx.effect_mode,
}
LOOK_SECONDS = 0.1  # how soon a request to stop is seen
MOST_LOG_LINES = 5_000
MOST_MESSAGE = 4_000
MOST_TEXT = 1_000
PLATFORM = sys.platform
START_SECONDS = 5.0  # what the supervisor itself may take, besides

# what the supervisor is started with: its modules without the package around them, which would cost eight times as much
BOOTSTRAP = (
    "import sys, types; p = types.ModuleType('recourse'); p.__path__ = [sys.argv[1]]; sys.modules['recourse'] = p;"
    " from recourse.processes.supervisor import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one command with all that it starts; None: no bound.

    `cpu_seconds` holds for each process (RLIMIT_CPU) and for all together; `memory_bytes` (address space, RLIMIT_AS)
    and `files` (open ones) for each process. `processes` counts threads too; reaching it ends the command.
    `output_bytes` are those of standard output and standard error together. After SIGTERM all have `grace_seconds`,
    then SIGKILL comes, and `kill_seconds` later what still lives is reported as left.
    """

    wall_seconds: float | None = 3600.0
    cpu_seconds: float | None = 600.0
    memory_bytes: int | None = 4 * 1024**3
    processes: int = 200
    files: int | None = 1024
    output_bytes: int = 1024 * 1024
    grace_seconds: float = 10.0
    kill_seconds: float = 5.0

    def __post_init__(self) -> None:
        for name, most in (("processes", 4096), ("output_bytes", 8 * 1024**2), ("grace_seconds", 600)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigurationError(f"{name} is from 0 to {most}")
        for name, value in asdict(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            may_be_none = name in ("wall_seconds", "cpu_seconds", "memory_bytes", "files") and value is None
            may_be_nothing = name in ("grace_seconds", "kill_seconds")
            if not may_be_none and (not is_number or value < 0 or (value == 0 and not may_be_nothing)):
                raise ConfigurationError(f"{name} is a number above 0, not {value!r}")


def command(
    args: Iterable[str],
    *,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    pass_env: Iterable[str] = (),
    pause_seconds: float | None = None,
    **limits: Any,
) -> Command:
    """A handler that runs `args`, without a shell: register it, or call it with the context in a handler of your own.

    `user`: as whom it runs, when the worker is root (`nobody`). Its environment is `env`, what is named in `pass_env`
    of the worker's own, and what says which attempt it works for. `pause_seconds`: how long it may go on after its run
    was paused, before it is ended and its stage given back; None: to its end. `limits`: see `Limits`.

    Raises ConfigurationError for what cannot be done here, before anything runs.
    """
    try:
        bounds = Limits(**limits)
    except TypeError as error:
        raise ConfigurationError(f"unknown limit: {str(error).rpartition(' ')[2]}") from error
    return Command(list(args), user, dict(env or {}), tuple(pass_env), pause_seconds, bounds)


class Command:
    """See `command`. It holds no state of an attempt: one may serve many at once."""

    def __init__(
        self,
        args: list[str],
        user: str | None,
        env: dict[str, str],
        pass_env: tuple[str, ...],
        pause_seconds: float | None,
        limits: Limits,
    ) -> None:
        if os.name != "posix":
            raise ConfigurationError("commands need a POSIX system")
        texts = [*args, *env, *env.values(), *pass_env]
        if not args or not args[0] or not all(isinstance(one, str) and "\0" not in one for one in texts):
            raise ConfigurationError("a command is a program with its arguments, all of them text without NUL")
        secret = NEVER_PASSED.intersection(pass_env)
        if secret:
            raise ConfigurationError(f"{', '.join(sorted(secret))} is the worker's alone, and never passed on")
        self.args = args
        self.limits = limits
        self.pause_seconds = pause_seconds
        self._user = _user(user)
        self._env = env
        self._pass_env = pass_env

    def __call__(self, ctx: StageContext) -> Success | Failure:
        """Runs it to its end. Raises `Stopped` when the attempt was cancelled or lost, or the worker ends, and
        `Release` when its run is paused for too long: each time after all has ended, or what is left is known.
        """
        ctx.raise_if_stopped()
        ctx.stop_seconds = self.limits.grace_seconds + self.limits.kill_seconds + START_SECONDS
        ended = _Supervised(self, ctx).run(self._wish(ctx))
        ctx.usage = _usage(ended)
        if ended.get("signals") or not ended.get("complete", True):
            ctx.termination = _termination(ended, self.limits)
        return _outcome(ended, ctx, self.limits)

    def _wish(self, ctx: StageContext) -> dict[str, Any]:
        return {
            "args": self.args,
            "env": self._environment(ctx),
            "input": ctx.input or "",
            "user": self._user,
            "folder": os.path.join(tempfile.gettempdir(), f"recourse-{uuid.uuid4().hex}"),
            "platform": PLATFORM,
            **asdict(self.limits),
        }

    def _environment(self, ctx: StageContext) -> dict[str, str]:
        """Nothing of the worker's but what was named; HOME and TMPDIR are added where the folder is made."""
        passed = {name: os.environ[name] for name in self._pass_env if name in os.environ}
        told = {name: str(of(ctx)).replace("\0", "") for name, of in ABOUT.items()}
        return {"PATH": PATH, "LANG": "C.UTF-8"} | passed | self._env | told


class _Supervised:
    """One supervisor, as the worker sees it."""

    def __init__(self, wanted: Command, ctx: StageContext) -> None:
        self._command = wanted
        self._ctx = ctx
        self._lines = 0
        self._paused_at: float | None = None
        self._told = False
        self._began = clock.now()

    def run(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """What the supervisor has to tell at last; what can be said without it, when it died."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOOTSTRAP, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            cwd="/",
            start_new_session=True,
        )
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a process without its pipes")
        try:
            self._say(process, json.dumps(wish).encode() + b"\n")
            ended = self._listen(process)
            process.wait()
        finally:
            process.stdout.close()
            self._hang_up(process)
            process.wait()
        if ended is None:
            shutil.rmtree(wish["folder"], ignore_errors=True)
            return self._without_word(process)
        return ended

    def _listen(self, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        """Passes lines on, and requests to stop, until the last word; None when it ended without one."""
        pending = b""
        end = process.stdout.fileno() if process.stdout else -1
        while True:
            self._pass_on_request(process)
            ready, _, _ = select.select([end], [], [], LOOK_SECONDS)
            if not ready:
                continue
            data = os.read(end, 65_536)
            if not data:
                return None
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "ended" in message:
                    ended: dict[str, Any] = message["ended"]
                    return ended
                self._log(message["log"])

    def _pass_on_request(self, process: subprocess.Popen[bytes]) -> None:
        if self._told:
            return
        reason = self._ctx.control.stopped_because or self._paused_too_long()
        if reason is not None:
            self._told = True
            self._say(process, reason.encode() + b"\n")

    def _paused_too_long(self) -> str | None:
        patience = self._command.pause_seconds
        if patience is None or not self._ctx.pause_requested or self._ctx.effect_mode == "external":
            return None
        if self._paused_at is None:
            self._paused_at = clock.now()
        return "paused" if clock.now() - self._paused_at >= patience else None

    def _log(self, texts: list[str]) -> None:
        for text in texts:
            self._lines += 1
            if self._lines <= MOST_LOG_LINES and not text.startswith(ERROR_MARK):
                self._ctx.log("info", text)
            elif self._lines == MOST_LOG_LINES + 1:
                self._ctx.log("warning", f"the command wrote more than {MOST_LOG_LINES} lines; the rest is left out")

    def _without_word(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """The supervisor was killed: its command dies with it, of all that the command had started nothing is known."""
        why = f"its supervisor (process {process.pid}) ended without a word, status {process.returncode}"
        return {
            "exit_code": None,
            "signal": None,
            "reason": "supervisor_lost",
            "by_itself": False,
            "signals": [],
            "duration_seconds": round(clock.now() - self._began, 3),
            "cpu_seconds": None,
            "max_rss_bytes": None,
            "processes_seen": None,
            "left": [{"pid": None, "command": " ".join(self._command.args), "why": why}],
            "left_count": 1,
            "complete": False,
            "counted": False,
            "output": "",
            "tail": "",
        }

    @staticmethod
    def _say(process: subprocess.Popen[bytes], data: bytes) -> None:
        try:
            if process.stdin:
                process.stdin.write(data)
                process.stdin.flush()
        except OSError:  # it is gone, and that is seen where it is listened to
            pass

    @staticmethod
    def _hang_up(process: subprocess.Popen[bytes]) -> None:
        try:
            if process.stdin:
                process.stdin.close()
        except OSError:
            pass


def _user(name: str | None) -> tuple[int, int] | None:
    """Uid and gid to run as; None: as the worker. Root gives its rights up unless `user="root"` is said."""
    is_root = os.geteuid() == 0
    if name is not None and not is_root:
        raise ConfigurationError(f"only a worker that is root can run a command as {name!r}")
    if not is_root:
        return None
    import pwd  # POSIX's alone, while the package can be imported elsewhere too

    wanted = name or "nobody"
    try:
        found = pwd.getpwuid(int(wanted)) if wanted.isdecimal() else pwd.getpwnam(wanted)
    except KeyError:
        raise ConfigurationError(f"there is no user {wanted!r} to run commands as; name one with user=") from None
    return found.pw_uid, found.pw_gid


def _usage(ended: Mapping[str, Any]) -> dict[str, Any]:
    """`complete` only when everything was counted, and nothing runs on (R34)."""
    if "not_started" in ended:
        return {"wall_seconds": 0.0, "cpu_seconds": 0.0, "max_rss_bytes": 0, "processes_seen": 0, "complete": True}
    return {
        "wall_seconds": ended["duration_seconds"],
        "cpu_seconds": ended["cpu_seconds"],
        "max_rss_bytes": ended["max_rss_bytes"],
        "processes_seen": ended["processes_seen"],
        "complete": bool(ended["counted"] and ended["complete"]),
    }


def _termination(ended: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """What the console is told of the end (R39)."""
    told = {
        "reason": ended["reason"] or "ended",
        "signals": [
            {"signal": one["signal"], "afterSeconds": one["after_seconds"], "processes": one["processes"]}
            for one in ended["signals"]
        ],
        "exitCode": ended["exit_code"],
        "signal": ended["signal"],
        "durationSeconds": ended["duration_seconds"],
        "graceSeconds": limits.grace_seconds,
        "cpuSeconds": ended["cpu_seconds"],
        "maxRssBytes": ended["max_rss_bytes"],
        "processesSeen": ended["processes_seen"],
        "left": [
            {name: value[:MOST_TEXT] if isinstance(value, str) else value for name, value in one.items()}
            for one in ended["left"]
        ],
        "leftCount": ended["left_count"],
        "complete": ended["complete"],
        "platform": PLATFORM,
    }
    return {name: value for name, value in told.items() if value is not None}


def _outcome(ended: Mapping[str, Any], ctx: StageContext, limits: Limits) -> Success | Failure:
    if "not_started" in ended:
        return Failure("COMMAND_NOT_STARTED", ended["not_started"])
    reason = ended["reason"]
    # what acts outside and was cut off, or runs on, is not to be done again by itself: nobody knows how far it came
    is_cut_off = not ended["complete"] or not ended["by_itself"] or ended["signal"] is not None
    again = False if is_cut_off and ctx.effect_mode == "external" else None
    if reason == "output":
        text = f"the command wrote more than {limits.output_bytes} bytes"
        return Failure("OUTPUT_TOO_LARGE", text, retryable=False)
    if reason == "supervisor_lost":
        return Failure("SUPERVISOR_LOST", ended["left"][0]["why"], retryable=again)
    if not ended["by_itself"]:
        return _ended_by_us(reason, ended, ctx, limits, again)
    if ended["signal"] == "SIGXCPU":
        return Failure("CPU_EXCEEDED", f"a process used {limits.cpu_seconds:g} s of processor time", retryable=again)
    if ended["signal"] is not None:
        return Failure("SIGNALLED", _with_tail(f"the command was ended by {ended['signal']}", ended), retryable=again)
    if ended["exit_code"] != 0:
        return _failed(ended, again)
    return Success(_read(binascii.a2b_base64(ended["output"])))


def _ended_by_us(
    reason: str, ended: Mapping[str, Any], ctx: StageContext, limits: Limits, again: bool | None
) -> Failure:
    if reason == "paused":
        raise Release
    if reason == "wall_clock":
        return Failure("TIMEOUT", f"the command ran for {limits.wall_seconds:g} s", retryable=again)
    if reason == "cpu":
        text = f"the command and what it started used {limits.cpu_seconds:g} s of processor time"
        return Failure("CPU_EXCEEDED", text, retryable=again)
    if reason == "processes":
        text = f"the command had {limits.processes} processes and threads at once"
        return Failure("PROCESSES_EXCEEDED", text, retryable=False)
    if ctx.cancelled:
        raise Stopped(reason)
    return Failure("SIGNALLED", f"the command was ended: {reason}", retryable=again)


def _failed(ended: Mapping[str, Any], again: bool | None) -> Failure:
    """By the error that the command named in its last line, else by its exit status."""
    code = ended["exit_code"]
    lines = ended["tail"].strip().splitlines()
    if lines and lines[-1].startswith(ERROR_MARK):
        try:
            told = json.loads(lines[-1].removeprefix(ERROR_MARK))
            name, text, retryable = str(told["code"]), str(told.get("message", "")), told.get("retryable")
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        else:
            if name.strip():
                return Failure(name, text, retryable=again if retryable is None else again is None and bool(retryable))
    return Failure(f"EXIT_{code}", _with_tail(f"the command ended with status {code}", ended), retryable=again)


def _with_tail(text: str, ended: Mapping[str, Any]) -> str:
    tail = ended["tail"].strip()
    return f"{text}\n{tail[-MOST_MESSAGE:]}" if tail else text


def _read(data: bytes) -> Any:
    """JSON when it parses, else the text; None for nothing."""
    text = data.decode("utf-8", "backslashreplace")
    if not text:
        return None
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
