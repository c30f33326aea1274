"""The role that alone works on rows of the workspace store: whether it can be acted as, and acting as it.

It may touch `recourse_store` and nothing else, and nobody can log in as it; statements on rows run under it, so that
whatever they came to say they could not reach what the console itself keeps (N22). A server user who may not make roles
gets a store that is closed, with a sentence that says what to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg.errors
from django.db import ProgrammingError, connection
from django.db.utils import DataError

from pipelines.errors import Refusal
from pipelines.sql import execute, query

ROLE = "recourse_store"
TO_RUN = 'CREATE ROLE recourse_store NOLOGIN; GRANT recourse_store TO "{user}";'
HINT = "As a database user who may make roles run {sql} Then run `python manage.py migrate`."
CLOSED = "the workspace store is closed: its database role is missing or cannot be used; `manage.py check` says how"
_CANNOT = (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject)


@contextmanager
def as_store() -> Iterator[None]:
    """Statements of the block run as the role; within a transaction. A block that fails has the caller's undo it.

    Refused with `store_closed` where the console may not act as the role.
    """
    try:
        execute(f"SET LOCAL ROLE {ROLE}")
    except (ProgrammingError, DataError) as error:
        raise _closed(error) from error
    try:
        yield
    except ProgrammingError as error:
        raise _closed(error) from error
    execute("RESET ROLE")


def why_closed() -> str:
    """Why the store cannot be used, for who runs the server; blank when it can. Changes nothing."""
    if not query("SELECT to_regclass('recourse_store.rows') IS NOT NULL")[0][0]:
        return ""  # not migrated yet: others say so
    if not query("SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = %s)", [ROLE])[0][0]:
        return "There is no database role recourse_store: the workspace store is closed."
    is_super, may_act, may_write = query(
        "SELECT r.rolsuper OR r.rolbypassrls OR r.rolcreaterole, pg_has_role(current_user, r.oid,"
        " CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END),"
        " has_schema_privilege(r.oid, 'recourse_store', 'USAGE')"
        " AND has_table_privilege(r.oid, 'recourse_store.rows', 'DELETE')"
        " FROM pg_catalog.pg_roles r WHERE r.rolname = %s",
        [ROLE],
    )[0]
    if is_super:
        return "The database role recourse_store may do more than work on rows of the workspace store."
    if not may_act or not may_write:
        return "The database role recourse_store cannot be used by the console: the workspace store is closed."
    return ""


def what_to_run() -> str:
    """What opens it, as a hint of the system check."""
    return HINT.format(sql=TO_RUN.format(user=query("SELECT current_user")[0][0].replace('"', '""')))


def open_store(**_: Any) -> None:
    """After every migration: makes the role where that was not possible before, and gives it its rights."""
    if connection.vendor == "postgresql" and query("SELECT to_regproc('recourse_store_open') IS NOT NULL")[0][0]:
        query("SELECT recourse_store_open()")


def _closed(error: Exception) -> Exception:
    """The refusal, where the reason is a missing right; any other error as it is."""
    return Refusal("store_closed", CLOSED) if isinstance(error.__cause__, _CANNOT) else error
