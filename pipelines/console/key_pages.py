"""Screens of a workspace's signing keys: which there are, rotating them, revoking one. Serves O34–O36."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from pipelines import signing_keys
from pipelines.access import ADMINISTER
from pipelines.console.acts import Act, Step, perform
from pipelines.console.offers import missing_right
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.errors import Refusal
from pipelines.keyring import KeyState, PublicKey

acting = require_http_methods(["GET", "HEAD", "POST"])


@require_safe
@screen
def key_list(request: ScreenRequest) -> HttpResponse:
    """All keys with their public halves, the newest first."""
    actor = request.visit.actor
    refusal = "" if actor.may(ADMINISTER) else missing_right(actor, ADMINISTER, "change signing keys")
    return show(request, "audit/keys.html", {"keys": signing_keys.listed(actor.workspace_id), "refusal": refusal})


@acting
@screen
def rotate(request: ScreenRequest) -> HttpResponse:
    """A new key signs from now on; what was looked at is the key that it takes the place of."""
    actor = request.visit.actor
    actor.require(ADMINISTER)
    replaces = request.POST.get("replaces") or _active(signing_keys.listed(actor.workspace_id))
    act = Act(
        title="Sign with a new key from now on",
        needs=ADMINISTER,
        steps=[
            Step("active", "New", "a key is made, and signs checkpoints, evidence and the ends of the audit chain"),
            Step("retiring", "Goes on", f"{replaces or 'no key'}: what it signed is still believed"),
        ],
        button="Rotate the keys",
        back=reverse("console:signing-keys"),
        fields="audit/_replaces_field.html",
        answers={"replaces": replaces},
        reason_required=True,
    )

    def carry_out(reason: str) -> str:
        done = signing_keys.rotate(actor=actor, reason=reason, replaces=replaces or None)
        messages.success(request, f"Key {done.active} signs from now on.", "active")
        return reverse("console:signing-keys")

    return perform(request, act, carry_out)


@acting
@screen
def revoke(request: ScreenRequest, key_id: str) -> HttpResponse:
    """Nothing that the key ever signed is believed any more."""
    actor = request.visit.actor
    actor.require(ADMINISTER)
    key = next((one for one in signing_keys.listed(actor.workspace_id) if one.key_id == key_id), None)
    if key is None:
        raise Refusal("not_found", "there is no such signing key")
    is_active = key.state == KeyState.ACTIVE
    new = [Step("active", "New", "it signs now, so a key is made that takes its place at once")] if is_active else []
    act = Act(
        title=f"Revoke the signing key {key_id}",
        needs=ADMINISTER,
        steps=[
            Step("revoked", "Stops", "the key, at once and for good: it cannot be taken back"),
            Step(
                "revoked_key",
                "Believed no more",
                "every checkpoint and evidence that it signed, whenever that was: no rerun starts from them",
            ),
            *new,
        ],
        button="Revoke it",
        back=reverse("console:signing-keys"),
        reason_required=True,
        danger=True,
    )

    def carry_out(reason: str) -> str:
        done = signing_keys.revoke(key_id, actor=actor, reason=reason)
        said = "It was revoked already." if done.replayed else f"Revoked; {done.active} signs."
        messages.success(request, said, "no_op" if done.replayed else "revoked")
        return reverse("console:signing-keys")

    return perform(request, act, carry_out)


def _active(keys: Sequence[PublicKey]) -> str:
    return next((key.key_id for key in keys if key.state == KeyState.ACTIVE), "")
