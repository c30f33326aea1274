"""kombu's filesystem transport, with messages that appear whole and are taken by exactly one consumer.

The library's own writes a message under its final name, where a consumer may find it half written and die of it, and
takes it by a move into the system's temporary directory, which on another file system is a copy that two may make.
Here both are one rename inside the broker's own folder.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem

LONGEST_DRAIN = 0.2  # seconds
UNFINISHED = ".unfinished"  # in a name that no queue's messages end in


class Channel(filesystem.Channel):
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

    def drain_events(self, connection: Any, timeout: Any = None, **kwargs: Any) -> None:
        """Between two of these a worker looks whether it was told to stop; it would wait for two seconds each time."""
        super().drain_events(connection, timeout and min(timeout, LONGEST_DRAIN), **kwargs)  # type: ignore[no-untyped-call]


def install() -> None:
    """Makes `filesystem://` addresses use this transport in this process."""
    TRANSPORT_ALIASES["filesystem"] = f"{__name__}:Transport"
