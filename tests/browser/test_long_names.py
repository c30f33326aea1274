"""Names without a blank, and much in little room: nothing is cut without a way to it, nothing loses what it means."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from approvals.models import Channel
from pipelines.models import Application, Environment, Policy, Workspace
from tests.browser.looking import TOO_WIDE
from tests.browser.test_every_page import Open
from tests.cast import Person
from tests.recovery.backfilled import trigger_of

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "n" * 255
TALLER = "document.documentElement.scrollHeight - document.documentElement.clientHeight"
LABELS = """[...document.querySelectorAll("main .folds td[data-label]")].map((cell) =>
    [cell.dataset.label, getComputedStyle(cell, "::before").content])"""
# what of a part its own row, or the window, cuts off
CUT = """(selector) => [...document.querySelectorAll(selector)].map((part) => {
    const mine = part.getBoundingClientRect(), row = part.closest("tr, nav").getBoundingClientRect();
    return mine.height > 0 && mine.bottom <= row.bottom + 1 && mine.right <= Math.min(row.right, innerWidth) + 1;
  })"""


@pytest.mark.parametrize("width", [1280, 390])
def test_names_without_a_blank_break_on_the_admin_site(
    width: int, window: Open, people: dict[str, Person], workspace: Workspace
) -> None:
    """Its lists scroll in their panel, its forms break them; neither makes the page wider than its window."""
    user = people["admin"].user
    user.is_staff = user.is_superuser = True
    user.save()
    channel = Channel.objects.create(workspace=workspace, name=NAME, kind="email", recipients=["role:approver"])
    policy = Policy.objects.create(workspace=workspace, name=NAME, kind="retry")
    one = window(people["admin"], viewport={"width": width, "height": 900})
    for address in (
        reverse("admin:approvals_channel_changelist"),
        reverse("admin:approvals_channel_change", args=[channel.pk]),
        reverse("admin:pipelines_policy_changelist"),
        reverse("admin:pipelines_policy_change", args=[policy.pk]),
    ):
        one.go(address)
        assert one.page.evaluate(TOO_WIDE) <= 0, address


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_with_little_on_it_does_not_scroll(width: int, window: Open, people: dict[str, Person]) -> None:
    one = window(people["admin"], viewport={"width": width, "height": 900})
    for path in ("approvals/", "signing-keys/", "backfills/", "audit/?actor=nobody", "workspaces/"):
        one.go(f"/console/{path}")
        assert one.page.evaluate(TALLER) <= 0, path


def test_filters_above_a_short_list_leave_no_gap_on_a_narrow_screen(window: Open, people: dict[str, Person]) -> None:
    one = window(people["admin"], viewport={"width": 390, "height": 900})
    one.go("/console/audit/?actor=nobody")
    assert one.page.evaluate("document.querySelector('.rail').getBoundingClientRect().height") < 60


def test_each_value_of_a_folded_row_says_what_it_is(window: Open, people: dict[str, Person]) -> None:
    """The heads of columns are not seen where rows are folded."""
    one = window(people["admin"], viewport={"width": 390, "height": 900})
    for path in ("members/", "account/"):
        one.go(f"/console/{path}")
        labels = one.page.evaluate(LABELS)
        assert labels, path
        assert [told for label, told in labels if label not in told] == [], path
    one.look(width=1280)
    assert {told for _, told in one.page.evaluate(LABELS)} == {"none"}, "where there are heads, nothing is said twice"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_zone_of_a_long_schedule_is_seen_whole(
    width: int, window: Open, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    cron = "0,5,10,15,20,25,30,40,50,55 6-22 1-7,15-21 jan,mar,may,jul,sep,nov mon-fri"
    settings: dict[str, Any] = {"cron": cron, "timezone": "America/Argentina/ComodRivadavia", "name": NAME}
    trigger_of(people["admin"].actor, environment, application, **settings)
    one = window(people["admin"], viewport={"width": width, "height": 900})
    one.go("/console/triggers/")
    assert one.page.evaluate(CUT, ".triggers .below") == [True] * 3, "of the name, the schedule and the next time"
    assert one.page.evaluate(TOO_WIDE) <= 0


def test_every_tab_is_seen_on_a_narrow_screen(window: Open, people: dict[str, Person]) -> None:
    one = window(people["approver"], viewport={"width": 390, "height": 900})
    for path in ("approvals/?view=decided", "triggers/"):
        one.go(f"/console/{path}")
        seen = one.page.evaluate(CUT, ".tabs a")
        assert seen == [True] * len(seen)
