"""What every answer says to browsers and caches, whoever asked and whatever came of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from config.security import POLICY
from pipelines.models import Run
from tests.cast import Api, Person

pytestmark = pytest.mark.django_db


def test_every_answer_has_the_policy_and_is_kept_by_no_cache(
    people: dict[str, Person], api: Api, start_run: Any, as_person: Any
) -> None:
    """Pages, both APIs and refusals: data of runs stays out of shared caches, and of a browser after its log-out."""
    run: Run = start_run()
    visitor = Client()
    visitor.force_login(people["viewer"].user)
    answers = [
        *(
            visitor.get(path)
            for path in ("/", "/console/", f"/console/runs/{run.id}/", "/console/nowhere/", "/nowhere")
        ),
        *(visitor.get(path) for path in ("/admin/", "/admin/login/", "/v1/docs", "/v1/schema", "/healthz", "/metrics")),
        *(as_person(people["viewer"]).get(path) for path in ("/v1/executions", f"/v1/executions/{run.id}", "/v1/nil")),
        api.get(f"/pipelines/{run.id}"),
        api.post("/pipelines/idempotent", b"{"),
        Client().get("/v1/executions"),
    ]
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert "no-store" in answer.headers["Cache-Control"], answer.request["PATH_INFO"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"


def test_files_may_be_kept() -> None:
    answer = Client().get("/static/recourse/console.css")
    assert answer.status_code == 200
    assert "public" in answer.headers["Cache-Control"]
    answer.close()


def test_the_cookie_of_a_log_in_is_out_of_reach_of_scripts_and_of_other_sites(people: dict[str, Person]) -> None:
    """And a session that somebody else has laid out is not the one that is logged in (fixation)."""
    visitor = Client()
    visitor.cookies["sessionid"] = "laid-out-by-somebody-else"
    visitor.post("/console/login/", {"username": "viewer-acme", "password": "secret"})
    cookie = visitor.cookies["sessionid"]
    assert cookie.value != "laid-out-by-somebody-else"
    assert cookie["httponly"] is True
    assert cookie["samesite"] == "Lax"
