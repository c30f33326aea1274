"""A command as a handler: what goes in and comes out, its limits, and that nothing of it is left. Real processes.

After each test the kernel is asked whether anything that was started still lives. Programs that multiply are bounded by
RLIMIT_NPROC besides the supervisor's count: never take either away.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recourse import (
    ConfigurationError,
    Failure,
    Job,
    Registry,
    Release,
    StageContext,
    Stopped,
    Success,
    command,
    commands,
    execution,
)
from recourse.processes import table
from recourse.processes.trees import Descendants, send_to

from tests.sdk.conftest import eventually
from tests.sdk.process_table import living

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# a grandchild in a session of its own whose parents have ended, deaf to SIGTERM; then the command goes on or ends
ESCAPED = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(1), os.close(2)
        time.sleep(600)
    os._exit(0)
os.wait()
print("away", file=sys.stderr, flush=True)
time.sleep(float(sys.argv[1]))
"""


class Tried:
    """One attempt by a command, to its end."""

    def __init__(self, effect_mode: str = "idempotent", text: str | None = None) -> None:
        self.execution_id = str(uuid.uuid4())
        wire = {
            "stageId": "stage-1",
            "stageName": "shrink",
            "stageHandlerName": "Shrink",
            "pipelineId": "run-1",
            "executionId": self.execution_id,
            "attempt": 3,
            "epoch": 2,
            "requestDigest": "d" * 64,
            "idempotencyKey": "stage-1:2",
            "effectMode": effect_mode,
            "input": text,
        }
        self.ctx = StageContext(Job(wire))
        self.result: Success | Failure | None = None
        self.raised: Exception | None = None

    def run(self, args: list[str], **options: Any) -> Tried:
        try:
            self.result = command(args, **options)(self.ctx)
        except (Stopped, Release) as error:
            self.raised = error
        return self

    @property
    def failure(self) -> Failure:
        assert isinstance(self.result, Failure), self.result
        return self.result

    @property
    def output(self) -> Any:
        assert isinstance(self.result, Success), self.result
        return self.result.output

    @property
    def usage(self) -> dict[str, Any]:
        assert self.ctx.usage is not None
        return self.ctx.usage

    @property
    def end(self) -> dict[str, Any]:
        assert self.ctx.termination is not None
        return self.ctx.termination

    @property
    def signals(self) -> list[str]:
        return [one["signal"] for one in self.end["signals"]]

    @property
    def lines(self) -> list[str]:
        return [line["message"] for line in self.ctx.take_lines()]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Tried]]:
    """Makes attempts; at the end of the test nothing of any of them lives, and no directory is left.

    After `tmp_path`, which pytest makes where temporary files go.
    """
    folders = Path(tempfile.mkdtemp(prefix="recourse-tests-", dir="/tmp"))
    folders.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    made: list[Tried] = []

    def make(**how: Any) -> Tried:
        made.append(Tried(**how))
        return made[-1]

    yield make
    assert [pid for one in made for pid in living(one.execution_id)] == []
    folders.rmdir()


Make = Callable[..., Tried]


def python(program: str, *args: str) -> list[str]:
    return ["python3", "-c", program, *args]


# what goes in and comes out


def test_the_input_is_standard_input_byte_for_byte_and_json_is_read_back(tried: Make) -> None:
    """P16 for commands."""
    text = json.dumps({"invoice": "ü" * 200_000}, ensure_ascii=False)
    assert tried(text=text).run(["cat"]).output == json.loads(text)
    assert tried(text="not json\n").run(["cat"]).output == "not json\n"
    assert tried(text="NaN").run(["cat"]).output == "NaN"
    assert tried().run(["cat"]).output is None


def test_a_command_that_reads_nothing_is_not_held_up_by_its_input(tried: Make) -> None:
    assert tried(text="x" * 250_000).run(["true"]).output is None


def test_it_is_told_which_attempt_it_works_for(tried: Make) -> None:
    """P59: the key that stays the same over all attempts is at hand for outside systems."""
    one = tried()
    told = dict(line.split("=", 1) for line in one.run(["env"]).output.splitlines())
    about = {name: value for name, value in told.items() if name.startswith("RECOURSE_")}
    assert about == {
        "RECOURSE_RUN_ID": "run-1",
        "RECOURSE_STAGE_ID": "stage-1",
        "RECOURSE_STAGE_NAME": "shrink",
        "RECOURSE_EXECUTION_ID": one.execution_id,
        "RECOURSE_ATTEMPT": "3",
        "RECOURSE_EPOCH": "2",
        "RECOURSE_IDEMPOTENCY_KEY": "stage-1:2",
        "RECOURSE_REQUEST_DIGEST": "d" * 64,
        "RECOURSE_EFFECT_MODE": "idempotent",
    }


def test_nothing_of_the_workers_environment_reaches_it_but_what_was_named(
    tried: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application's key is the worker's alone; so is every other secret."""
    secrets = {"RECOURSE_API_KEY": "rk_1", "PIPELOGIQ_API_KEY": "rk_2", "RECOURSE_TOKEN": "rt_3", "AWS_SECRET": "four"}
    for name, value in (secrets | {"REGION": "eu"}).items():
        monkeypatch.setenv(name, value)
    program = "import os, sys; print(open('/proc/self/environ').read(), open(f'/proc/{os.getppid()}/cmdline').read())"
    seen = tried().run(python(program), pass_env=["REGION", "NOT_THERE"], env={"QUALITY": "80"}).output
    assert "REGION=eu" in seen
    assert "QUALITY=80" in seen
    assert "NOT_THERE" not in seen
    for value in secrets.values():
        assert value not in seen


@pytest.mark.parametrize("name", ["RECOURSE_API_KEY", "PIPELOGIQ_API_KEY", "RECOURSE_TOKEN"])
def test_the_workers_own_secrets_cannot_even_be_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match="never passed on"):
        command(["true"], pass_env=[name])


def test_what_the_worker_has_open_is_closed_to_it(tried: Make, tmp_path: Path) -> None:
    """Not a file, a socket or a pipe of the worker's, nor of the supervisor's."""
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        program = "import os; print([n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')])"
        assert tried().run(python(program)).output == "['0', '1', '2']\n"


def test_standard_error_becomes_log_lines(tried: Make) -> None:
    one = tried().run(["sh", "-c", "echo one >&2; echo >&2; printf two >&2; echo out"])
    assert one.output == "out\n"
    assert one.lines == ["one", "two"]


def test_a_long_log_is_bounded_and_says_so(tried: Make) -> None:
    lines = tried().run(["sh", "-c", "seq 1 7000 >&2"]).lines
    assert len(lines) <= 5_002
    assert "the command wrote more than 5000 lines; the rest is left out" in lines


def test_its_folder_is_private_and_gone_afterwards(tried: Make) -> None:
    told = tried().run(["sh", "-c", "touch here; stat -c '%a %U' .; pwd; echo $HOME $TMPDIR"]).output.split()
    assert told[0] == "700"
    assert told[2] == told[3] == told[4]
    assert not Path(told[2]).exists()


# how it ends


def test_other_exit_statuses_are_failures_with_a_code_of_their_own(tried: Make) -> None:
    """P41: every failure has a code."""
    failure = tried().run(["sh", "-c", "echo why >&2; exit 3"]).failure
    assert (failure.code, failure.retryable) == ("EXIT_3", None)
    assert failure.message == "the command ended with status 3\nwhy"


def test_its_last_line_may_name_the_error(tried: Make) -> None:
    """P41, P42."""
    told = {"code": "UPSTREAM_ERROR", "message": "they are away", "retryable": False}
    one = tried().run(["sh", "-c", f"echo before >&2; echo 'RECOURSE_ERROR {json.dumps(told)}' >&2; exit 4"])
    assert one.failure == Failure("UPSTREAM_ERROR", "they are away", retryable=False)
    assert one.lines == ["before"]


@pytest.mark.parametrize("line", ["RECOURSE_ERROR {", "RECOURSE_ERROR []", 'RECOURSE_ERROR {"code": " "}'])
def test_a_broken_last_line_is_only_a_line(tried: Make, line: str) -> None:
    assert tried().run(["sh", "-c", f"echo '{line}' >&2; exit 4"]).failure.code == "EXIT_4"


def test_a_signal_that_was_not_ours_is_told_by_its_name(tried: Make) -> None:
    one = tried().run(["sh", "-c", "kill -SEGV $$"])
    assert (one.failure.code, one.failure.message) == ("SIGNALLED", "the command was ended by SIGSEGV")
    assert one.ctx.termination is None


def test_a_program_that_is_not_there_is_a_failure_that_says_so(tried: Make) -> None:
    failure = tried().run(["/no/such/program"]).failure
    assert failure == Failure("COMMAND_NOT_STARTED", "executing /no/such/program: No such file or directory")


def test_usage_goes_with_the_result_and_is_whole_when_all_was_counted(tried: Make) -> None:
    """R34: processor time of children and of what left the group is in it."""
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    one = tried()
    program = f"import os, subprocess; subprocess.run(['setsid', 'python3', '-c', {burn!r}])"
    one.run(python(program))
    assert one.usage["complete"] is True
    assert one.usage["cpu_seconds"] >= 0.5
    assert one.usage["processes_seen"] >= 2
    assert one.usage["max_rss_bytes"] > 1_000_000
    report = execution.run(one.ctx.job, _registry(), context=one.ctx)
    assert report.body["usage"]["complete"] is True
    assert one.ctx.termination is None


def test_usage_that_the_kernel_threw_away_is_not_called_whole(tried: Make) -> None:
    """R34: who ignores its children's ends has their time forgotten."""
    program = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    time.sleep(1.5)
    os._exit(0)
time.sleep(2)
"""
    assert tried().run(python(program)).usage["complete"] is False


def _registry() -> Registry:
    registry = Registry()
    registry.add("Shrink", command(["true"]))
    return registry


# limits


@pytest.mark.parametrize("stream", ["", " >&2"])
def test_a_flood_of_output_is_ended_and_is_final(tried: Make, stream: str) -> None:
    """R25, issue item 6: over the bound it is killed, and not tried again."""
    one = tried().run(
        ["sh", "-c", f"trap '' TERM; while :; do yes{stream}; done"], output_bytes=100_000, grace_seconds=1
    )
    assert (one.failure.code, one.failure.retryable) == ("OUTPUT_TOO_LARGE", False)
    assert one.signals == ["SIGTERM", "SIGKILL"]
    assert one.end["complete"] is True
    assert sum(map(len, one.lines)) <= 100_000


def test_output_up_to_the_bound_is_taken_whole(tried: Make) -> None:
    program = "import sys; sys.stdout.write('x' * 60000); sys.stderr.write('y' * 40000)"
    assert tried().run(python(program), output_bytes=100_000).output == "x" * 60_000
    assert tried().run(python(program), output_bytes=99_999).failure.code == "OUTPUT_TOO_LARGE"


FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def test_a_fork_bomb_of_200_processes_is_ended_at_once_and_wholly(tried: Make) -> None:
    """R39, issue item 6: frozen before it is killed, so that it cannot outrun its end; no grace for it."""
    one = tried().run(python(FORK_BOMB), processes=200, wall_seconds=60, cpu_seconds=120)
    assert (one.failure.code, one.failure.retryable) == ("PROCESSES_EXCEEDED", False)
    assert one.signals == ["SIGKILL"]
    assert (one.end["complete"], one.end["left"]) == (True, [])
    assert 100 <= one.usage["processes_seen"] <= 250
    assert one.usage["complete"] is True


def test_threads_count_as_processes_do(tried: Make) -> None:
    program = """
import threading, time
for _ in range(80):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
time.sleep(60)
"""
    one = tried().run(python(program), processes=40, wall_seconds=60, grace_seconds=1)
    assert one.failure.code in ("PROCESSES_EXCEEDED", "EXIT_1")
    assert one.usage["wall_seconds"] < 30


def test_processor_time_is_bounded_for_one_process(tried: Make) -> None:
    one = tried().run(["sh", "-c", "while :; do :; done"], cpu_seconds=1, grace_seconds=1)
    assert one.failure.code == "CPU_EXCEEDED"
    assert one.usage["cpu_seconds"] < 5


def test_processor_time_is_bounded_for_all_together(tried: Make) -> None:
    """None of them reaches the limit by itself."""
    one = tried().run(["sh", "-c", "for i in 1 2 3 4; do (while :; do :; done) & done; wait"], cpu_seconds=2)
    assert one.failure.code == "CPU_EXCEEDED"
    assert one.end["reason"] == "cpu"
    assert one.usage["cpu_seconds"] >= 2


def test_memory_is_bounded(tried: Make) -> None:
    program = "b = bytearray(900 * 1024 * 1024); print(len(b))"
    one = tried().run(python(program), memory_bytes=300 * 1024**2)
    assert one.failure.code == "EXIT_1"
    assert "MemoryError" in one.failure.message
    assert one.usage["max_rss_bytes"] < 300 * 1024**2


def test_open_files_are_bounded(tried: Make) -> None:
    program = "f = [open('/dev/null') for _ in range(100)]"
    assert "Too many open files" in tried().run(python(program), files=50).failure.message


def test_the_wall_clock_ends_what_does_not_hear(tried: Make) -> None:
    """R39: TERM, grace, KILL; the result of it is kept."""
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    one = tried().run(["sh", "-c", f'trap "" TERM; python3 -c "{program}"; sleep 600'], wall_seconds=1, grace_seconds=1)
    assert one.failure.code == "TIMEOUT"
    assert one.signals == ["SIGTERM", "SIGKILL"]
    assert one.end["signals"][1]["afterSeconds"] - one.end["signals"][0]["afterSeconds"] >= 1
    assert (one.end["reason"], one.end["signal"], one.end["complete"]) == ("wall_clock", "SIGKILL", True)


@pytest.mark.parametrize(("effect_mode", "retryable"), [("idempotent", None), ("external", False)])
def test_what_acts_outside_and_was_cut_off_is_not_tried_again_by_itself(
    tried: Make, effect_mode: str, retryable: bool | None
) -> None:
    """I2, P6: nobody knows how far it came; what it says itself by its status is believed."""
    failures = [
        tried(effect_mode=effect_mode).run(["sleep", "600"], wall_seconds=0.5).failure,
        tried(effect_mode=effect_mode).run(["sh", "-c", "kill -9 $$"]).failure,
    ]
    assert [(one.code, one.retryable) for one in failures] == [("TIMEOUT", retryable), ("SIGNALLED", retryable)]
    assert tried(effect_mode=effect_mode).run(["sh", "-c", "exit 3"]).failure.retryable is None


def test_a_supervisor_that_is_told_to_end_ends_all_and_says_so(tried: Make) -> None:
    """R39: as when its worker dies and another process of the worker's keeps its pipe open."""
    one = tried()
    runs = threading.Thread(target=one.run, args=(python(ESCAPED, "600"),), kwargs={"grace_seconds": 0.5})
    runs.start()
    eventually(lambda: one.ctx.has_news)
    rows = [table.read(pid) for pid in living(one.execution_id)]
    os.kill(min(row.parent for row in rows if row is not None), signal.SIGTERM)
    runs.join(30)
    assert one.failure.code == "SIGNALLED"
    assert (one.end["reason"], one.end["complete"]) == ("told_to_end", True)


def test_who_hears_has_the_grace_to_end_in_order(tried: Make) -> None:
    program = """
import signal, sys, time
def end(*_):
    print("tidied", file=sys.stderr, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
time.sleep(600)
"""
    one = tried().run(python(program), wall_seconds=2, grace_seconds=60)
    assert one.failure.code == "TIMEOUT"
    assert one.signals == ["SIGTERM"]
    assert one.lines == ["tidied"]
    assert one.usage["wall_seconds"] < 30


# privileges


@needs_root
def test_a_worker_that_is_root_gives_its_rights_up(tried: Make) -> None:
    """Issue item 6: another user, no groups, no capabilities, nothing to gain them back with."""
    told = tried().run(["sh", "-c", "id -un; id -G; grep -E '^(CapEff|NoNewPrivs|Groups)' /proc/self/status; umask"])
    lines = [line.split() for line in told.output.splitlines()]
    assert lines[0] == ["nobody"]
    assert len(lines[1]) == 1
    assert ["Groups:"] in [line[:1] for line in lines]
    assert ["CapEff:", "0" * 16] in lines
    assert ["NoNewPrivs:", "1"] in lines
    assert lines[-1] == ["0077"]


@needs_root
def test_it_can_neither_read_the_worker_nor_end_its_supervisor(tried: Make) -> None:
    program = """
import os
found = []
for path in (f"/proc/{os.getppid()}/environ", "/proc/%d/environ" % int(os.environ["WORKER"])):
    try:
        found.append(open(path).read())
    except PermissionError:
        found.append("no")
try:
    os.kill(os.getppid(), 9)
except PermissionError:
    found.append("no")
print(found)
"""
    assert tried().run(python(program), env={"WORKER": str(os.getpid())}).output == "['no', 'no', 'no']\n"


@needs_root
def test_a_user_can_be_named_and_one_that_is_not_there_is_refused_early(tried: Make) -> None:
    assert tried().run(["id", "-un"], user="daemon").output == "daemon\n"
    with pytest.raises(ConfigurationError, match="there is no user 'nobody-at-all'"):
        command(["true"], user="nobody-at-all")


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": 0},
        {"processes": 5000},
        {"cpu_seconds": -1},
        {"output_bytes": 2**30},
        {"memory_bytes": "1 GB"},
        {"wall_seconds": True},
        {"mistyped": 1},
    ],
)
def test_a_limit_that_is_none_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        command(["true"], **wrong)


@pytest.mark.parametrize("args", [[], [""], ["a\0b"], [1]])
def test_a_command_without_a_program_is_refused(args: Any) -> None:
    with pytest.raises(ConfigurationError):
        command(args)


# descendants


def test_what_a_command_leaves_behind_is_found_and_ended(tried: Make) -> None:
    """R39: a double fork into a session of its own does not help; the command's own success counts."""
    one = tried().run(python(ESCAPED, "0"), grace_seconds=1)
    assert one.output is None
    assert (one.end["reason"], one.end["exitCode"]) == ("left_behind", 0)
    assert one.signals == ["SIGTERM", "SIGKILL"]
    assert one.end["complete"] is True
    assert one.usage["complete"] is True


def test_what_ends_by_itself_soon_is_waited_for(tried: Make) -> None:
    """The last words of a pipeline are not cut off."""
    one = tried().run(["sh", "-c", "(sleep 0.3; echo late) & exit 0"])
    assert one.output == "late\n"
    assert one.ctx.termination is None


@pytest.mark.parametrize("reason", ["cancelled", "lost", "drain"])
def test_told_to_stop_it_ends_all_and_offers_no_result(tried: Make, reason: str) -> None:
    """P58, R39: also what left the group, the session and its parents."""
    one = tried()
    runs = threading.Thread(target=one.run, args=(python(ESCAPED, "600"),), kwargs={"grace_seconds": 1})
    runs.start()
    eventually(lambda: one.ctx.has_news)
    assert len(living(one.execution_id)) == 2
    one.ctx.control.stop(reason)
    runs.join(60)
    assert isinstance(one.raised, Stopped)
    assert living(one.execution_id) == []
    assert (one.end["reason"], one.end["complete"]) == (reason, True)
    assert one.signals == ["SIGTERM", "SIGKILL"]
    assert one.usage["complete"] is True


def test_an_attempt_that_is_not_ours_is_not_begun(tried: Make) -> None:
    """P58."""
    one = tried()
    one.ctx.control.stop("lost")
    one.run(["sh", "-c", "echo begun >&2"])
    assert isinstance(one.raised, Stopped)
    assert one.lines == []
    assert one.ctx.termination is None


@pytest.mark.parametrize(("effect_mode", "is_released"), [("idempotent", True), ("external", False)])
def test_a_pause_ends_it_after_its_time_unless_it_acts_outside(
    tried: Make, effect_mode: str, is_released: bool
) -> None:
    """P61: in flight it may finish, or where that is said only for so long; what acts outside always may."""
    one = tried(effect_mode=effect_mode)
    one.ctx.control.pause_requested = True
    one.run(["sleep", "1.5"], pause_seconds=0.2)
    assert isinstance(one.raised, Release) == is_released
    assert isinstance(one.result, Success) != is_released


def test_a_pause_without_a_time_lets_it_finish(tried: Make) -> None:
    """P61."""
    one = tried()
    one.ctx.control.pause_requested = True
    assert one.run(["sh", "-c", "sleep 0.5; echo done"]).output == "done\n"


def test_when_the_supervisor_is_killed_the_command_dies_and_nothing_is_claimed(tried: Make) -> None:
    """R34, R38: what nobody saw is not told as ended, and not counted."""
    one = tried(effect_mode="external")
    runs = threading.Thread(target=one.run, args=(["sleep", "600"],))
    runs.start()
    (pid,) = eventually(lambda: living(one.execution_id))
    row = table.read(pid)
    assert row is not None
    os.kill(row.parent, signal.SIGKILL)
    runs.join(30)
    eventually(lambda: not living(one.execution_id))
    assert (one.failure.code, one.failure.retryable) == ("SUPERVISOR_LOST", False)
    assert (one.end["complete"], one.end["leftCount"]) == (False, 1)
    assert one.usage["complete"] is False


def test_elsewhere_than_on_linux_what_left_the_group_is_reported_as_not_stopped(
    tried: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R38, R39: nothing is claimed that cannot be known."""
    monkeypatch.setattr(commands, "PLATFORM", "plan9")
    one = tried()
    one.run(python(ESCAPED, "600"), wall_seconds=2, grace_seconds=1)
    escaped = living(one.execution_id)
    try:
        assert len(escaped) == 1
        assert one.failure.code == "TIMEOUT"
        assert (one.end["complete"], one.end["platform"]) == (False, "plan9")
        assert [left["why"] for left in one.end["left"]] == [
            "on plan9 what left the command's group cannot be found, so it counts as not stopped"
        ]
        assert one.usage["complete"] is False
    finally:
        for pid in escaped:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not living(one.execution_id))


def test_only_where_it_is_offered_the_supervisor_adopts_orphans(tried: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of other systems is walked here as it is there: nothing adopts what left its parent."""
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(0.3)
        print(os.getppid(), flush=True)
    os._exit(0)
os.wait()
time.sleep(0.6)
"""
    adopted = []
    for platform in ("linux", "plan9"):
        monkeypatch.setattr(commands, "PLATFORM", platform)
        ends = tried().run(python(program))
        adopted.append(table.read(int(ends.output)) is None)  # by the supervisor, which has ended since
    assert adopted == [True, False]


def test_elsewhere_a_command_that_ends_by_itself_has_nothing_to_answer_for(
    tried: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PLATFORM", "plan9")
    one = tried().run(["echo", "1"])
    assert one.output == 1
    assert one.ctx.termination is None
    assert one.usage["complete"] is False


def test_a_signal_never_meets_a_later_process_of_the_same_number() -> None:
    """What was looked at and what is there now are told apart by when they began."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    try:
        row = table.read(pid)
        assert row is not None
        assert not send_to(row._replace(started=row.started - 1), signal.SIGKILL)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        assert row.pid in {one.pid for one in Descendants().look()}
        assert send_to(row, signal.SIGKILL)
    finally:
        os.waitpid(pid, 0)


def test_many_at_once_do_not_take_one_anothers_children(tried: Make) -> None:
    """Why each has a supervisor: no thread of the worker waits for what is another's."""
    ones = [tried(text=str(number)) for number in range(8)]
    threads = [threading.Thread(target=one.run, args=(["sh", "-c", "sleep 0.2 & wait; cat"],)) for one in ones]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [one.output for one in ones] == list(range(8))
    assert all(one.usage["complete"] for one in ones)
