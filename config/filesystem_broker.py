"""kombu's filesystem transport, with messages and tables that appear whole; one consumer takes a message.

The library's own writes a message under its final name, where a consumer may find it half written and die of it, and
takes it by a move into the system's temporary directory, which on another file system is a copy that two may make.
Here both are one rename inside the broker's own folder.

It also makes the table of an exchange's queues empty and fills it then, and takes a queue for entered as soon as
another thread has begun to: who publishes in between dies, or loses the message. Here the table appears whole, and each
connection enters its queues itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem, virtual

LONGEST_DRAIN = 0.2  # seconds
UNFINISHED = ".unfinished"  # in a name that no queue's messages end in


class Channel(filesystem.Channel):
    def _queue_bind(self, exchange: Any, routing_key: Any, pattern: Any, queue: Any) -> None:
        table = self._exchange_file(exchange)  # type: ignore[no-untyped-call]
        self.control_folder.mkdir(exist_ok=True)
        with (self.control_folder / "bind.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if not table.exists():
                begun = table.with_name(table.name + UNFINISHED)
                begun.write_text("[]")
                begun.rename(table)
            super()._queue_bind(exchange, routing_key, pattern, queue)  # type: ignore[no-untyped-call]

    def _put(self, queue: Any, message: Any, **kwargs: Any) -> None:  # type: ignore[override]
        name = f"{time.time_ns()}_{uuid.uuid4()}.{queue}.msg"
        final = Path(self.data_folder_out, name)
        begun = final.with_name(name + UNFINISHED)
        begun.write_text(json.dumps(message))
        begun.rename(final)

    def _get(self, queue: Any, timeout: Any = None) -> Any:
        ending = f"{queue}.msg"
        for name in sorted(os.listdir(self.data_folder_in)):
            if name.partition(".")[2] != ending:
                continue
            waiting = Path(self.data_folder_in, name)
            taken = waiting.with_name(name + UNFINISHED)
            try:
                waiting.rename(taken)
            except FileNotFoundError:
                continue  # another consumer was quicker
            text = taken.read_text()
            taken.unlink()
            return json.loads(text)
        raise Empty


class Transport(filesystem.Transport):
    Channel = Channel

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)  # type: ignore[no-untyped-call]
        self.state = virtual.BrokerState()  # type: ignore[no-untyped-call]

    def drain_events(self, connection: Any, timeout: Any = None, **kwargs: Any) -> None:
        """Between two of these a worker looks whether it was told to stop; it would wait for two seconds each time."""
        super().drain_events(connection, timeout and min(timeout, LONGEST_DRAIN), **kwargs)  # type: ignore[no-untyped-call]


def install() -> None:
    """Makes `filesystem://` addresses use this transport in this process."""
    TRANSPORT_ALIASES["filesystem"] = f"{__name__}:Transport"
