"""A worker: pulls jobs over HTTP, runs them under a lease, delivers how they ended. See `python -m recourse.worker --help`."""

from recourse.worker.service import Worker

__all__ = ["Worker"]
