"""The same work under dbos: workflows of three no-op steps, from a queue. Runs in a virtual environment of its own.

python dbos_worker.py enqueue URL COUNT    puts COUNT workflows in the queue
python dbos_worker.py work URL             works until it is ended
python dbos_worker.py idle URL COUNT       starts COUNT workflows one after another and prints each one's seconds
"""

import sys
import time

from dbos import DBOS, DBOSClient

QUEUE = "bench"


@DBOS.step()
def first() -> dict:
    return {"ok": True}


@DBOS.step()
def second() -> dict:
    return {"ok": True}


@DBOS.step()
def third() -> dict:
    return {"ok": True}


@DBOS.workflow()
def three_steps() -> dict:
    first()
    second()
    return third()


def launch(url: str) -> None:
    DBOS(config={"name": "bench", "system_database_url": url, "application_version": "1", "log_level": "ERROR"})
    DBOS.launch()
    # as quick as it goes: its default polls once a second
    DBOS.register_queue(QUEUE, polling_interval_sec=0.05)


def main() -> None:
    what, url = sys.argv[1:3]
    if what == "work":
        launch(url)
        print("ready", flush=True)
        while True:
            time.sleep(3600)
    if what == "enqueue":
        client = DBOSClient(system_database_url=url)
        for _ in range(int(sys.argv[3])):
            client.enqueue({"queue_name": QUEUE, "workflow_name": "three_steps", "app_version": "1"})
    if what == "idle":
        launch(url)
        for _ in range(int(sys.argv[3])):
            begun = time.perf_counter()
            three_steps()
            print(time.perf_counter() - begun)
    DBOS.destroy()


if __name__ == "__main__":
    main()
