"""A worker: pulls jobs over HTTP, runs them under a lease, and delivers how they ended."""

from recourse.worker.service import Worker

__all__ = ["Worker"]
