"""From what somebody types to ids: only what the API can answer is asked, and what names nothing says what does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recourse.cli import WHAT_TO_DO
from recourse.errors import ConfigurationError
from recourse.terminal.choosing import run_id, stage_id, trigger_id
from recourse.terminal.exits import Refused

from pipelines.errors import STATUS

ID = "0197f3a2-5c1e-7d55-8a44-6f1c2b9d7e10"
STAGE = "0197f3a2-5c1e-7d55-8a44-6f1c2b9d7e11"
NOBODY = SimpleNamespace()  # whatever is asked of it is a fault

# what workers and handlers are refused, and what says all there is to say by itself
NEEDS_NO_ADVICE = {
    "validation_error",
    "idempotency_conflict",
    "stale_execution",
    "effect_class_unknown",
    "effect_key_required",
    "recipient_not_allowed",
    "artifact_immutable",
    "bulk_too_many_targets",
    "result_not_confirmed",
    "store_closed",
    "store_conflict",
    "store_quota_exceeded",
}


def console(*, key_finds: str | None = None, stages: tuple[str, ...] = (), triggers: Any = ()) -> Any:
    def lookup(key: str) -> dict[str, str]:
        if key_finds is None:
            raise ConfigurationError("no API key")
        return {"id": ID, "key": key}

    listed = [{"stage_id": STAGE, "name": name} for name in stages]
    return SimpleNamespace(
        runs=SimpleNamespace(lookup=lookup),
        executions=SimpleNamespace(stages=lambda run: {"results": listed if run == ID else []}),
        triggers=SimpleNamespace(
            list=lambda name=None, page_size=None: {
                "results": [one for one in triggers if name in (None, one["name"])],
                "next": None,
            }
        ),
    )


def test_an_id_is_asked_of_nobody() -> None:
    assert run_id(NOBODY, ID) == ID
    assert stage_id(NOBODY, STAGE) == STAGE
    assert trigger_id(NOBODY, ID.upper()) == ID.upper()


@given(st.text(max_size=40).filter(lambda text: not text.startswith("key:")))
def test_what_is_neither_an_id_nor_a_key_is_refused_before_anything_is_asked(text: str) -> None:
    """The beginning of an id too: the API finds no runs by it, and nobody guesses."""
    with pytest.raises(Refused, match="execution list"):
        run_id(NOBODY, text)


@pytest.mark.parametrize("length", [8, 13, 35])
def test_the_beginning_of_an_id_is_no_id(length: int) -> None:
    with pytest.raises(Refused, match="whole id"):
        run_id(NOBODY, ID[:length])


def test_a_key_is_found_with_its_application_s_key_only() -> None:
    assert run_id(console(key_finds=ID), "key:invoice/7 of: May") == ID
    with pytest.raises(Refused, match="RECOURSE_API_KEY"):
        run_id(console(), "key:invoice-7")


def test_a_stage_is_named_by_its_run_whatever_its_name_and_key_are() -> None:
    """A name may hold a slash where the run is an id; a key may where the name holds none."""
    assert stage_id(console(stages=("load", "a/b")), f"{ID}/a/b") == STAGE
    assert stage_id(console(key_finds=ID, stages=("load",)), "key:2026/05/load") == STAGE
    with pytest.raises(Refused, match="no stage laod; it has: load"):
        stage_id(console(stages=("load",)), f"{ID}/laod")
    with pytest.raises(Refused, match="its id, or RUN/NAME"):
        stage_id(console(), "load")


def test_a_trigger_is_named_where_one_has_the_name() -> None:
    one, other = ({"id": which, "name": "daily", "environment": where} for which, where in ((ID, "a"), (STAGE, "b")))
    assert trigger_id(console(triggers=[one]), "daily") == ID
    with pytest.raises(Refused, match=rf"several triggers are called daily: {ID} in a, {STAGE} in b"):
        trigger_id(console(triggers=[one, other]), "daily")
    with pytest.raises(Refused, match="no trigger is called weekly; there are: daily"):
        trigger_id(console(triggers=[one]), "weekly")


def test_every_refusal_says_what_to_do() -> None:
    """Each code of model §6 that a person meets at a terminal."""
    unadvised = set(STATUS) - NEEDS_NO_ADVICE - set(WHAT_TO_DO)
    assert not unadvised, f"say in recourse.cli.WHAT_TO_DO what to do, or here that nothing is to say: {unadvised}"
    assert set(WHAT_TO_DO) <= set(STATUS)
    assert not NEEDS_NO_ADVICE & set(WHAT_TO_DO)
