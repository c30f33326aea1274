"""Whatever is typed into the screens of bulks, accounts, pipelines and the audit is answered; nothing is half done."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any
from urllib.parse import quote

import pytest
from django.urls import reverse

from pipelines import listing
from pipelines.filters import RunFilter
from pipelines.models import Environment, Run
from recovery import bulks
from recovery.models import BulkItem, BulkOperation
from recovery.states import OperationKind
from tests.cast import Api, Hand, Person
from tests.console.conftest import Visitor
from tests.console.test_hostile_forms import MIXED, _ask
from tests.recovery.backfilled import pipeline_of
from tests.recovery.bulked import failing, letters_of, of

pytestmark = pytest.mark.django_db(transaction=True)

K = OperationKind
ENDS_OF_TIME = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59", "2026-01-01T00:00")
NUMBERS = ("0" * 5_000, "0100" + "9" * 400, "0" * 4_400 + "5", "9" * 5_000, "²", "٣", "-1", "1e3", "0x10", "1_0", " ")
VALUES = (*MIXED, *ENDS_OF_TIME, *NUMBERS, "x" * 70_000)


@pytest.fixture
def admin(browse: Callable[[Person], Visitor], people: dict[str, Person]) -> Visitor:
    visitor = browse(people["admin"])
    visitor.raise_request_exception = False
    return visitor


# which fields a kind reads that others pass over; all the rest are read by the same lines, whatever the kind
OWN = {K.PAUSE: ("until",), K.RERUN: ("from", "stage", "environment"), K.REDRIVE: ()}


@pytest.mark.parametrize("kind", OWN)
def test_no_term_of_a_draft_fails_and_nothing_of_it_is_done(
    admin: Visitor, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand, kind: OperationKind
) -> None:
    """Each field in turn beside good ones: typed, and the draft stays one unless all of it could be meant (F135).

    Every value into every field of a kind's own; into the others a third of them, each kind another.
    """
    runs = failing(start_run, hand, 2)
    targets = letters_of(runs) if kind in (K.REDRIVE, K.DISCARD) else runs
    fields = ("reason", "rate", "canary", "stop", "override_reason", "scope", "until", "from", "stage", "environment")
    actor = people["admin"].actor
    bulk = bulks.draft(of(kind, targets), actor=actor)
    wrong = []
    for field in (*fields, "freeze_release", "plan_digest", "look"):
        for value in VALUES if field in OWN[kind] else VALUES[list(OWN).index(kind) :: len(OWN)]:
            good = {"reason": "r", "from": "stage", "stage": "first"}
            answer = _ask(admin.post, reverse("console:bulk-start", args=[bulk.id]), good | {field: value})
            if answer.status_code >= 500:
                wrong.append((field, value[:40]))
            bulk.refresh_from_db()
            if bulk.state != "draft":
                shown = admin.get(reverse("console:bulk", args=[bulk.id]))
                assert shown.status_code == 200, (field, value[:40])
                bulk = bulks.draft(of(kind, targets), actor=actor)
    assert wrong == []
    assert not BulkOperation.objects.filter(stop_ratio__gt=1).exists()


def test_no_selection_fails_and_none_makes_a_draft(admin: Visitor, start_run: Callable[..., Run]) -> None:
    """What names no target of ours makes no draft (F55, F161)."""
    start_run("first")
    wrong = []
    for kind in ("retry", "redrive", "nonsense", "\x00"):
        for name in ("ids", "selected"):
            for value in VALUES:
                answer = _ask(admin.post, reverse("console:bulk-new"), {"kind": kind, name: value})
                if answer.status_code not in (400, 404):
                    wrong.append((kind, name, value[:40], answer.status_code))
        for text in (*(f"search={value}" for value in MIXED), *MIXED, "&".join(f"a{n}=1" for n in range(2_000))):
            answer = _ask(admin.post, reverse("console:bulk-new"), {"kind": kind, "all": "1", "filter": text[:80_000]})
            if answer.status_code >= 500:
                wrong.append((kind, "filter", text[:40], answer.status_code))
    assert wrong == []
    assert not BulkItem.objects.exists()


def test_no_form_of_accounts_and_pipelines_fails(
    admin: Visitor, people: dict[str, Person], environment: Environment
) -> None:
    """Tokens, passwords, pipelines, releases (O59)."""
    pipeline = pipeline_of(people["admin"].actor, environment)
    forms: tuple[tuple[str, list[Any], tuple[str, ...], dict[str, str]], ...] = (
        ("token-new", [], ("name", "days"), {"name": "n", "days": "30"}),
        ("account-password", [], ("old_password", "new_password1", "new_password2"), {}),
        ("pipeline-new", [], ("slug", "name", "description"), {"slug": "s", "name": "n"}),
        ("pipeline-change", [pipeline.id], ("name", "description"), {"name": "n"}),
        ("release-new", [pipeline.id], ("environment", "activate", "document"), {"environment": "production"}),
        ("sessions-end", [], ("reason",), {}),
        ("audit-export", [], ("format",), {}),
    )
    wrong = []
    for name, args, fields, good in forms:
        for field in fields:
            for value in VALUES:
                answer = _ask(admin.post, reverse(f"console:{name}", args=args), good | {field: value})
                answer.close()
                if answer.status_code >= 500:
                    wrong.append((name, field, value[:40]))
    assert wrong == []


LISTS = ("audit", "bulk-list", "runs", "dead-letters", "pipelines", "workers", "account", "members")
TERMS = (
    *("status", "kind", "cursor", "page_size", "since", "until", "run", "actor", "bulk", "action", "top", "seen"),
    *("search", "workspace", "error_code", "handler", "environment"),
)


@pytest.mark.parametrize("page", LISTS)
def test_no_address_of_these_lists_fails(admin: Visitor, page: str) -> None:
    """Each term with some of the values, others on each page; and what live parts send back with every one."""
    whole, part = {}, {"HX-Request": "true"}
    start = LISTS.index(page) * 8 * len(TERMS) % len(VALUES)
    values = cycle(VALUES[start:] + VALUES[:start])
    asked = [({name: next(values)}, headers) for name in TERMS for headers in (whole, part) for _ in range(4)]
    asked += [({"seen": value, "top": value}, headers) for value in VALUES for headers in (whole, part)]
    wrong = []
    for data, headers in asked:
        try:
            answer = admin.get(reverse(f"console:{page}"), data, headers=headers)
        except UnicodeEncodeError:
            continue
        if answer.status_code >= 500:
            wrong.append({name: value[:40] for name, value in data.items()})
    assert wrong == []


@pytest.mark.parametrize("charset", ["unicode_escape", "raw_unicode_escape", "utf-16", "utf-7", "hex", "idna", "none"])
def test_no_charset_smuggles_what_no_text_may_hold(
    admin: Visitor, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand, charset: str
) -> None:
    """Forms are read as UTF-8 whatever a client claims: the lone surrogate stays the six letters that were sent."""
    bulk = bulks.draft(of(K.REDRIVE, letters_of(failing(start_run, hand, 1))), actor=people["admin"].actor)
    begin = reverse("console:bulk-start", args=[bulk.id])
    for page, given in (("/console/", "search"), ("/console/audit/", "actor"), ("/console/login/", "next")):
        answer = admin.generic("GET", page, b"", f"text/plain; charset={charset}", QUERY_STRING=f"{given}=\\ud800")
        assert answer.status_code < 500, page
    parts = {"reason": b"lone \\ud800 one", "rate": b"5"}
    body = b"".join(
        b'--B\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (n.encode(), v) for n, v in parts.items()
    )
    answer = admin.generic("POST", begin, body + b"--B--\r\n", f"multipart/form-data; boundary=B; charset={charset}")
    assert answer.status_code == 303
    bulk.refresh_from_db()
    assert bulk.reason == "lone \\ud800 one"


@pytest.mark.parametrize("words", ["²", "<script>", "² ³", "½ <a>"])
def test_a_search_of_nothing_is_never_all(
    people: dict[str, Person], api: Api, start_run: Callable[..., Run], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that the index cannot hold find nothing, and a bulk by them takes nothing (F161)."""
    monkeypatch.setattr(listing, "GLANCE", 1)  # as with more runs than are glanced at
    for _ in range(3):
        start_run("first", name="orders")
    actor = people["operator"].actor
    assert api.get(f"/v1/executions?search={quote(words)}").json()["results"] == []
    for wide in (False, True):
        wanted = RunFilter(search=(words,), wide=wide)
        wish = bulks.Wish(K.CANCEL, bulks.Selection(runs=wanted), reason="r")
        assert bulks.draft(wish, actor=actor).total == 0


@pytest.mark.parametrize("until", ENDS_OF_TIME)
def test_a_pause_until_no_time_to_come_is_refused(
    admin: Visitor, people: dict[str, Person], start_run: Callable[..., Run], until: str
) -> None:
    """One run's as a bulk's: by its field, and nothing is paused."""
    run = start_run("first")
    bulk = bulks.draft(of(K.PAUSE, [run]), actor=people["admin"].actor)
    alone = admin.post(reverse("console:pause", args=[run.id]), {"reason": "r", "until": until})
    many = admin.post(reverse("console:bulk-start", args=[bulk.id]), {"reason": "r", "until": until})
    assert (alone.status_code, many.status_code) == (400, 400)
    run.refresh_from_db()
    bulk.refresh_from_db()
    assert (run.paused, bulk.state) == (False, "draft")
