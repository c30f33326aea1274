"""What models share: closed sets and insert-only rows, guarded by the database itself."""

from __future__ import annotations

from typing import Any

import pgtrigger
from django.db import models
from django.db.models import Func


class RecourseNow(Func):
    """The database's clock, through the one function that reads it (tests shift it there)."""

    function = "recourse_now"
    template = "%(function)s()"
    output_field = models.DateTimeField()


class TextDigest(Func):
    """SHA-256 of a text's UTF-8, in hex."""

    function = "recourse_text_digest"
    output_field = models.CharField(max_length=64)


def closed_set(field: str, choices: type[models.TextChoices], name: str) -> models.CheckConstraint:
    """A named check that `field` holds one of the enum's values and nothing else."""
    return models.CheckConstraint(condition=models.Q(**{f"{field}__in": choices.values}), name=name)


def insert_only(name: str) -> pgtrigger.Trigger:
    """Refuses every UPDATE, and every DELETE outside a retention transaction that names itself (I7, model §3.13)."""
    return pgtrigger.Trigger(
        name=name,
        when=pgtrigger.Before,
        operation=pgtrigger.Update | pgtrigger.Delete,
        func="""
            IF TG_OP = 'DELETE' AND current_setting('recourse.retention', true) = 'on' THEN RETURN OLD; END IF;
            RAISE EXCEPTION 'rows of % are only ever added', TG_TABLE_NAME
                USING ERRCODE = 'integrity_constraint_violation';
        """,
    )


def only_added(name: str) -> pgtrigger.Trigger:
    """Refuses every UPDATE and DELETE, retention's too: for what outlives the run that it is about."""
    return pgtrigger.Trigger(
        name=name,
        when=pgtrigger.Before,
        operation=pgtrigger.Update | pgtrigger.Delete,
        func="""
            RAISE EXCEPTION 'rows of % are only ever added', TG_TABLE_NAME
                USING ERRCODE = 'integrity_constraint_violation';
        """,
    )


def frozen_when(name: str, condition: Any, message: str) -> pgtrigger.Trigger:
    """Refuses an UPDATE of a row for which `condition` (over OLD and NEW) holds."""
    return pgtrigger.Trigger(
        name=name,
        when=pgtrigger.Before,
        operation=pgtrigger.Update,
        condition=pgtrigger.Condition(condition),
        func=f"RAISE EXCEPTION '{message}' USING ERRCODE = 'integrity_constraint_violation';",
    )


def kept(name: str) -> pgtrigger.Trigger:
    """Refuses every DELETE outside a retention transaction that names itself (model §3.13)."""
    return pgtrigger.Trigger(
        name=name,
        when=pgtrigger.Before,
        operation=pgtrigger.Delete,
        func="""
            IF current_setting('recourse.retention', true) = 'on' THEN RETURN OLD; END IF;
            RAISE EXCEPTION 'rows of % are never removed', TG_TABLE_NAME
                USING ERRCODE = 'integrity_constraint_violation';
        """,
    )


def not_emptied(name: str) -> pgtrigger.Trigger:
    """Refuses TRUNCATE, which row triggers do not see, of the table itself and by way of another (R44, I7)."""
    return pgtrigger.Trigger(
        name=name,
        level=pgtrigger.Statement,
        when=pgtrigger.Before,
        operation=pgtrigger.Truncate,
        func="""
            RAISE EXCEPTION 'rows of % are never removed all at once', TG_TABLE_NAME
                USING ERRCODE = 'integrity_constraint_violation';
        """,
    )
