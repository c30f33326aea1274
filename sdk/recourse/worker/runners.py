"""Where handlers run: plain functions on threads, async ones together on one event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable

from recourse import execution
from recourse.errors import HandlerNotRegistered
from recourse.execution import Report
from recourse.handlers import Registry
from recourse.worker.leases import Held

log = logging.getLogger("recourse.worker")


class Runners:
    """Starts held attempts at once, and tells `ended` how each ended. Threads are daemons: a handler that never returns
    must not keep a process alive that has given its stage up.
    """

    def __init__(self, registry: Registry, threads: int, ended: Callable[[Held, Report | None], None]) -> None:
        self._registry = registry
        self._most = threads
        self._ended = ended
        self._queue: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self._threads = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, held: Held) -> None:
        """For the pulling thread alone. Never raises: an unknown handler ends with None, which gives the stage back."""
        try:
            handler = self._registry.find(held.job.handler_name)
        except HandlerNotRegistered as error:
            log.error("cannot run attempt %s: %s", held.job.execution_id, error)
            self._ended(held, None)
            return
        if handler.is_async:
            self._running_loop().call_soon_threadsafe(self._spawn, held)
            return
        with self._lock:
            more = self._waiting <= 0 and self._threads < self._most
            if more:
                self._threads += 1
            else:
                self._waiting -= 1
        self._queue.put(held)
        if more:
            threading.Thread(target=self._work, name=f"recourse-run-{self._threads}", daemon=True).start()

    def close(self) -> None:
        for _ in range(self._threads):
            self._queue.put(None)
        if self._loop is not None and self._loop_thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(1.0)

    def _work(self) -> None:
        while (held := self._queue.get()) is not None:
            self._ended(held, _stopped_before(held) or execution.run(held.job, self._registry, context=held.context))
            with self._lock:
                self._waiting += 1

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(
                target=self._run_loop, args=(self._loop,), name="recourse-loop", daemon=True
            )
            self._loop_thread.start()
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until `close`; what still runs then was given up, and is cancelled."""
        loop.run_forever()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()

    def _spawn(self, held: Held) -> None:
        # The loop itself keeps only weak references to tasks.
        task = asyncio.get_running_loop().create_task(self._await(held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, held: Held) -> None:
        report = _stopped_before(held) or await execution.run_async(held.job, self._registry, context=held.context)
        self._ended(held, report)


def _stopped_before(held: Held) -> Report | None:
    """An attempt that was lost or cancelled while it waited for a thread is never started."""
    return Report("stopped", {}, b"") if held.context.cancelled else None
