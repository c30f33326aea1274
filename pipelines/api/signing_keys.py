"""The operations API's routes for signing keys: public halves for whoever wants to verify, rotation, revocation."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import signing_keys
from pipelines.access import ADMINISTER, VIEW, Actor
from pipelines.api.endpoints import answer, not_found
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, Verb
from pipelines.api.operations_serializers import listed, time
from pipelines.api.shapes import Flag, Identifier, Moment, OneOf, Shape, Text
from pipelines.keyring import KeyState, PublicKey
from pipelines.signing import ED25519


class SigningKeyView(Shape):
    """`public_key`: 32 raw bytes in base64. Active keys sign, retiring ones only verify, revoked ones do neither."""

    id = Identifier()
    algorithm = OneOf((ED25519,))
    public_key = Text()
    status = OneOf([state.value for state in KeyState])
    created_at = Moment()
    retiring_since = Moment(allow_null=True)
    revoked_at = Moment(allow_null=True)


class ChangedKey(SigningKeyView):
    """The key that was made or revoked, and the one that signs now."""

    active = Identifier()
    replayed = Flag()


class RotateRequest(Verb):
    """`replaces`: the key that the caller believes to be active; when it is another, nothing changes."""

    replaces = Identifier(required=False)


class SigningKeys(OperationsEndpoint):
    """The workspace's signing keys, the newest first, all on one page, as they are now (O34)."""

    access = {"GET": VIEW}

    @extend_schema(responses=listed(SigningKeyView))
    def get(self, call: Call) -> HttpResponse:
        results = [_view(key) for key in signing_keys.listed(call.actor.workspace_id)]
        return answer({"next": None, "previous": None, "results": results})


class Rotate(OperationsEndpoint):
    """A new key signs from now on, the one before goes on verifying. Of many at once, one wins (O35)."""

    access = {"POST": ADMINISTER}
    bodies = {"POST": RotateRequest}
    actions = {"POST": "key.rotate"}

    @extend_schema(request=RotateRequest, responses={201: ChangedKey, 200: ChangedKey})
    def post(self, call: Call) -> HttpResponse:
        replaces = call.body.get("replaces")
        done = signing_keys.rotate(
            actor=call.actor, reason=call.reason, replaces=str(replaces) if replaces else None, key=call.key
        )
        return answer(_changed(done), 200 if done.replayed else 201)


class Revoke(OperationsEndpoint):
    """Nothing that the key signed is trusted from now on (O36). A new key takes the place of an active one."""

    access = {"POST": ADMINISTER}
    bodies = {"POST": Verb}
    actions = {"POST": "key.revoke"}

    def find(self, actor: Actor, **ids: uuid.UUID) -> str:
        key_id = str(ids["key_id"])
        if key_id not in {key.key_id for key in signing_keys.listed(actor.workspace_id)}:
            raise not_found()
        return key_id

    @extend_schema(request=Verb, responses=ChangedKey)
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # checked like any other; revoking again changes nothing, so there is nothing to remember
        return answer(_changed(signing_keys.revoke(call.target, actor=call.actor, reason=call.reason)))


urlpatterns = [
    path("signing-keys", SigningKeys.as_view()),
    path("signing-keys/rotate", Rotate.as_view()),
    path("signing-keys/<str:key_id>/revoke", Revoke.as_view()),
]


def _view(key: PublicKey) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "algorithm": ED25519,
        "public_key": key.text,
        "status": key.state.value,
        "created_at": time(key.created_at),
        "retiring_since": time(key.retiring_since),
        "revoked_at": time(key.revoked_at),
    }


def _changed(done: signing_keys.Changed) -> dict[str, Any]:
    return {**_view(done.key), "active": done.active, "replayed": done.replayed}
