"""The keyring that the console keeps itself: rotation with overlap, revocation, what is held for seconds, forgery."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines import catalog, keyring, signing, signing_keys
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Checkpoint, LocalKeyring, Run, Workspace
from pipelines.signing import Envelope, Verdict
from tests.cast import Api, Hand, Person, unknown_id
from tests.concurrency.crew import crew_of, refusals
from tests.services import database_url

pytestmark = pytest.mark.django_db
StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
MESSAGE = b"where the run stood"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    keyring.forget_all()
    yield
    keyring.forget_all()


def signed(workspace: Workspace) -> Envelope:
    return signing.sign(workspace.id, MESSAGE)


def verdict(workspace: Workspace, envelope: Envelope) -> Verdict:
    return signing.verify(workspace.id, envelope, MESSAGE)


def states(workspace: Workspace) -> dict[str, str]:
    return {key.key_id: key.state.value for key in signing_keys.listed(workspace.id)}


def document_of(workspace: Workspace) -> dict[str, Any]:
    return LocalKeyring.objects.get(workspace=workspace).document


def refused(act: Callable[[], Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        act()
    return caught.value


# rotation


def test_after_a_rotation_the_new_key_signs_and_the_old_one_still_verifies(
    workspace: Workspace, people: dict[str, Person]
) -> None:
    """O34, O35: the overlap lasts until the old key is revoked."""
    before = signed(workspace)
    done = signing_keys.rotate(actor=people["admin"].actor, reason="every spring")
    after = signed(workspace)
    assert after.key_id == done.active != before.key_id
    assert states(workspace) == {before.key_id: "retiring", after.key_id: "active"}
    assert [verdict(workspace, one) for one in (before, after)] == [Verdict.VALID, Verdict.VALID]
    event = AuditEvent.objects.get(action="key.rotate")
    assert (event.outcome, event.actor, event.reason) == ("allowed", people["admin"].actor.name, "every spring")
    assert (event.before, event.after) == ({"active": before.key_id}, {"active": after.key_id})


def test_a_key_that_retired_can_never_sign_again(workspace: Workspace, people: dict[str, Person]) -> None:
    """O35: its private half is not kept."""
    first = signed(workspace).key_id
    assert "private" in document_of(workspace)["keys"][first]
    signing_keys.rotate(actor=people["admin"].actor)
    assert "private" not in document_of(workspace)["keys"][first]


def test_the_row_tells_who_changed_it(workspace: Workspace, people: dict[str, Person]) -> None:
    signed(workspace)
    signing_keys.rotate(actor=people["admin"].actor)
    row = LocalKeyring.objects.get(workspace=workspace)
    assert (row.version, row.changed_by) == (2, people["admin"].user)


def test_a_rotation_for_another_key_than_the_active_one_is_refused(
    workspace: Workspace, people: dict[str, Person]
) -> None:
    """O35: who looked at an older state does not rotate away what they never saw."""
    admin, first = people["admin"].actor, signed(workspace).key_id
    signing_keys.rotate(actor=admin, replaces=first)
    before = document_of(workspace)
    assert refused(lambda: signing_keys.rotate(actor=admin, replaces=first)).code == "stale_request"
    assert document_of(workspace) == before
    assert list(AuditEvent.objects.values_list("outcome", flat=True).order_by("id")) == ["allowed", "failed"]


def test_the_same_request_again_rotates_once(
    workspace: Workspace, people: dict[str, Person], as_person: AsPerson
) -> None:
    """Model §3.6: one key, one act, the first result."""
    signed(workspace)
    admin = as_person(people["admin"])
    answers = [admin.post("/v1/signing-keys/rotate", idempotency_key="spring") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 200, 200]
    assert [answer.json()["replayed"] for answer in answers] == [False, True, True]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(states(workspace)) == 2
    other = admin.post("/v1/signing-keys/rotate", {"replaces": answers[0].json()["id"]}, idempotency_key="spring")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert len(states(workspace)) == 2
    assert admin.post("/v1/signing-keys/rotate", idempotency_key="summer").status_code == 201


@pytest.mark.django_db(transaction=True)
def test_of_rotations_that_read_the_same_keyring_one_wins(
    workspace: Workspace, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """O35: real connections; the others are refused typed and change nothing."""
    first, admin = signed(workspace).key_id, people["admin"].actor
    all_have_read, write = threading.Barrier(6), keyring.LocalStore.write

    def write_together(store: keyring.LocalStore, *args: Any, **more: Any) -> None:
        all_have_read.wait(20)
        write(store, *args, **more)

    monkeypatch.setattr(keyring.LocalStore, "write", write_together)
    with crew_of(6) as crew:
        answers = crew.at_once(*[lambda: signing_keys.rotate(actor=admin)] * 6)
    (won,) = [answer for answer in answers if isinstance(answer, signing_keys.Changed)]
    assert refusals(answers) == ["stale_request"] * 5
    assert states(workspace) == {first: "retiring", won.active: "active"}
    assert LocalKeyring.objects.get().version == 2
    events = AuditEvent.objects.filter(action="key.rotate").values_list("outcome", "code")
    assert sorted(events) == [("allowed", "")] + [("failed", "stale_request")] * 5


@pytest.mark.django_db(transaction=True)
def test_rotations_and_revocations_in_a_crowd_leave_one_active_key(
    workspace: Workspace, people: dict[str, Person]
) -> None:
    """O35, O36: no revocation is lost to a rotation, and none is refused because of one."""
    admin, doomed = people["admin"].actor, []
    for _ in range(3):
        doomed.append(signed(workspace).key_id)
        signing_keys.rotate(actor=admin)
    acts: list[Callable[[], Any]] = [lambda: signing_keys.rotate(actor=admin)] * 5
    acts += [lambda key_id=key_id: signing_keys.revoke(key_id, actor=admin) for key_id in doomed]
    with crew_of(8) as crew:
        answers = crew.at_once(*acts)
    assert set(refusals(answers)) <= {"stale_request"}
    assert refusals(answers[5:]) == []
    now = states(workspace)
    assert [now[key_id] for key_id in doomed] == ["revoked"] * 3
    assert list(now.values()).count("active") == 1


# revocation


def test_a_revoked_key_fails_closed_at_once(workspace: Workspace, people: dict[str, Person]) -> None:
    """O34, O36: in the overlap too, and whatever this process held a moment ago."""
    before = signed(workspace)
    signing_keys.rotate(actor=people["admin"].actor)
    assert verdict(workspace, before) == Verdict.VALID
    signing_keys.revoke(before.key_id, actor=people["admin"].actor, reason="leaked")
    assert verdict(workspace, before) == Verdict.REVOKED_KEY
    event = AuditEvent.objects.get(action="key.revoke")
    assert (event.outcome, event.reason, event.before["state"]) == ("allowed", "leaked", "retiring")


def test_when_the_active_key_is_revoked_a_new_one_takes_its_place(
    workspace: Workspace, people: dict[str, Person]
) -> None:
    """O36: in the same write, so that nothing is left unsigned."""
    before = signed(workspace)
    done = signing_keys.revoke(before.key_id, actor=people["admin"].actor)
    after = signed(workspace)
    assert after.key_id == done.active != before.key_id
    assert LocalKeyring.objects.get().version == 2
    assert states(workspace) == {before.key_id: "revoked", after.key_id: "active"}
    assert [verdict(workspace, one) for one in (before, after)] == [Verdict.REVOKED_KEY, Verdict.VALID]


def test_revoking_again_changes_nothing(workspace: Workspace, people: dict[str, Person]) -> None:
    admin, first = people["admin"].actor, signed(workspace).key_id
    signing_keys.revoke(first, actor=admin)
    before = document_of(workspace)
    assert signing_keys.revoke(first, actor=admin).replayed
    assert document_of(workspace) == before
    assert list(AuditEvent.objects.values_list("outcome", flat=True).order_by("id")) == ["allowed", "no_op"]


def test_a_key_of_another_workspace_is_not_there(
    workspace: Workspace, other_workspace: Workspace, people: dict[str, Person], as_person: AsPerson
) -> None:
    """I16: neither to be revoked nor to verify with."""
    theirs = signed(other_workspace)
    admin = as_person(people["admin"])
    for key_id in (theirs.key_id, unknown_id()):
        assert admin.post(f"/v1/signing-keys/{key_id}/revoke").status_code == 404
    assert states(other_workspace) == {theirs.key_id: "active"}
    assert verdict(workspace, theirs) == Verdict.INVALID
    assert theirs.key_id not in {key["id"] for key in admin.get("/v1/signing-keys").json()["results"]}


@pytest.mark.parametrize("role", ["viewer", "operator", "approver", "release_manager"])
def test_only_administrators_change_keys(workspace: Workspace, people: dict[str, Person], role: str) -> None:
    """Model §5: said, and kept as denied."""
    first, actor = signed(workspace).key_id, people[role].actor
    assert refused(lambda: signing_keys.rotate(actor=actor)).code == "permission_denied"
    assert refused(lambda: signing_keys.revoke(first, actor=actor)).code == "permission_denied"
    assert states(workspace) == {first: "active"}
    assert set(AuditEvent.objects.values_list("action", "outcome")) == {
        ("key.rotate", "denied"),
        ("key.revoke", "denied"),
    }


@given(steps=st.lists(st.one_of(st.just("rotate"), st.integers(0, 5)), max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_done_one_key_signs_and_no_revoked_one_comes_back(workspace: Workspace, steps: list[Any]) -> None:
    """O35, O36, of the document alone: one active key, the only one with a private half; nothing is ever forgotten."""
    ring = keyring.Keyring(workspace.id, 1, keyring.Keyring(workspace.id, 0, {}).rotated())
    revoked: set[str] = set()
    for step in steps:
        known = list(ring.keys)
        if step == "rotate":
            document = ring.rotated()
        else:
            document = ring.revoked(known[step % len(known)])
            revoked.add(known[step % len(known)])
        ring = keyring.Keyring(workspace.id, ring.version + 1, document)
        assert set(known) <= set(ring.keys)
        assert [key_id for key_id, key in ring.keys.items() if key.state == "active"] == [ring.active]
        assert [key_id for key_id, key in document["keys"].items() if "private" in key] == [ring.active]
        assert {key_id for key_id, key in ring.keys.items() if key.state == "revoked"} == revoked


# what is held for seconds


@pytest.mark.django_db(transaction=True)
def test_a_key_that_was_read_is_held_for_seconds_and_no_longer(
    workspace: Workspace, later: Callable[[float], None]
) -> None:
    """O36: no query at all while it is fresh."""
    signed(workspace)
    signed(workspace)
    with CaptureQueriesContext(connection) as queries:
        for _ in range(100):
            signed(workspace)
    assert len(queries) == 0
    later(keyring.SIGNING_CACHE_SECONDS + 0.1)
    with CaptureQueriesContext(connection) as queries:
        signed(workspace)
    assert len(queries) == 1


@pytest.mark.django_db(transaction=True)
def test_a_keyring_that_was_undone_is_never_signed_with(workspace: Workspace) -> None:
    """O34: what its transaction signed is gone with it; the next key is another, and it is the one that is kept."""
    with transaction.atomic():
        undone = {signed(workspace).key_id for _ in range(3)}
        transaction.set_rollback(True)
    assert len(undone) == 1
    kept = signed(workspace)
    assert kept.key_id not in undone
    assert states(workspace) == {kept.key_id: "active"}
    assert verdict(workspace, kept) == Verdict.VALID


@pytest.mark.django_db(transaction=True)
def test_a_keyring_that_a_savepoint_took_back_is_never_signed_with(workspace: Workspace) -> None:
    """O34: also within the same transaction."""
    with transaction.atomic():
        with transaction.atomic():
            undone = signed(workspace).key_id
            transaction.set_rollback(True)
        kept = signed(workspace)
        assert kept.key_id != undone
    assert signed(workspace).key_id == kept.key_id
    assert verdict(workspace, kept) == Verdict.VALID


@pytest.mark.django_db(transaction=True)
def test_a_rotation_that_was_undone_leaves_the_old_key(workspace: Workspace, people: dict[str, Person]) -> None:
    """O35: within the transaction the new key signs, afterwards the old one again."""
    before = signed(workspace).key_id
    with transaction.atomic():
        signed(workspace)
        signing_keys.rotate(actor=people["admin"].actor)
        within = signed(workspace)
        assert within.key_id != before
        transaction.set_rollback(True)
    assert signed(workspace).key_id == before
    assert verdict(workspace, within) == Verdict.INVALID


@pytest.mark.django_db(transaction=True)
def test_in_one_transaction_the_keyring_is_read_once(workspace: Workspace) -> None:
    """A batch of a hundred results that ends a hundred runs does not ask a hundred times."""
    signed(workspace)
    keyring.forget_all()
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        for _ in range(100):
            signed(workspace)
    assert len([query for query in queries if "localkeyring" in query["sql"]]) == 1


@pytest.mark.django_db(transaction=True)
def test_what_another_process_did_is_picked_up(
    workspace: Workspace, people: dict[str, Person], later: Callable[[float], None], tmp_path: Path
) -> None:
    """O35, O36: a rotation within seconds; a revocation holds at once for verifying, within seconds for signing."""
    first = signed(workspace)
    second = _other_process("rotate_signing_key", "--workspace", workspace.slug, data=tmp_path)
    assert signed(workspace).key_id == first.key_id, "held"
    later(keyring.SIGNING_CACHE_SECONDS + 0.1)
    assert signed(workspace).key_id == second
    third = _other_process("revoke_signing_key", second, "--workspace", workspace.slug, "--reason", "r", data=tmp_path)
    while_held = signed(workspace)
    assert (while_held.key_id, verdict(workspace, while_held)) == (second, Verdict.REVOKED_KEY)
    later(keyring.SIGNING_CACHE_SECONDS + 0.1)
    assert signed(workspace).key_id == third
    assert verdict(workspace, signed(workspace)) == Verdict.VALID


@pytest.mark.django_db(transaction=True)
def test_first_signatures_at_once_share_one_key(workspace: Workspace) -> None:
    """O34."""
    with crew_of(8) as crew:
        answers = crew.at_once(*[lambda: signed(workspace)] * 8)
    assert len({answer.key_id for answer in answers}) == 1
    assert {verdict(workspace, answer) for answer in answers} == {Verdict.VALID}
    assert LocalKeyring.objects.get().version == 1


# forgery


def forge(workspace: Workspace, change: Callable[[dict[str, Any]], Any], version: int | None = None) -> None:
    """Writes to the table as somebody would who has the database and not the console's key."""
    row = LocalKeyring.objects.get(workspace=workspace)
    document = change(row.document)
    row.document = row.document if document is None else document
    row.version = version or row.version
    row.save()
    keyring.forget_all()


def another_key() -> dict[str, str]:
    public = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    return {
        "public": base64.b64encode(public).decode(),
        "state": "retiring",
        "created_at": "2026-01-01T00:00:00+00:00",
    }


def test_a_key_that_was_slipped_into_the_table_is_not_believed(workspace: Workspace) -> None:
    """O34: the forger holds a signature that fits, by a key that the console never made."""
    signed(workspace)
    private = Ed25519PrivateKey.generate()
    theirs = another_key() | {"public": base64.b64encode(private.public_key().public_bytes_raw()).decode()}
    forge(workspace, lambda document: document["keys"].update({"theirs": theirs}))
    envelope = Envelope("ed25519", "theirs", base64.b64encode(private.sign(MESSAGE)).decode())
    assert verdict(workspace, envelope) == Verdict.INVALID
    assert signed(workspace) == Envelope()


def test_a_revocation_cannot_be_taken_back_in_the_table(workspace: Workspace, people: dict[str, Person]) -> None:
    """O36, R44: neither by hand nor by an older row, whichever version it says it is."""
    before = signed(workspace)
    older = document_of(workspace)
    signing_keys.revoke(before.key_id, actor=people["admin"].actor)
    forge(workspace, lambda document: document["keys"][before.key_id].update(state="retiring"))
    assert verdict(workspace, before) == Verdict.INVALID
    forge(workspace, lambda _: older)
    assert verdict(workspace, before) == Verdict.INVALID


@pytest.mark.django_db(transaction=True)
def test_an_older_row_that_is_put_back_whole_is_not_believed(workspace: Workspace, people: dict[str, Person]) -> None:
    """O36: with its seal and its version; a process that has met the newer one goes on refusing the revoked key."""
    envelope = signing.sign(workspace.id, b"text")
    before = LocalKeyring.objects.get(workspace=workspace)
    signing_keys.revoke(envelope.key_id, actor=people["admin"].actor)
    assert signing.verify(workspace.id, envelope, b"text") == Verdict.REVOKED_KEY
    before.save()
    assert signing.verify(workspace.id, envelope, b"text") == Verdict.INVALID
    with pytest.raises(keyring.Unavailable, match="brought back"):
        keyring.read(workspace.id)
    signing_keys.rotate(actor=people["admin"].actor, begin_anew=True)
    anew = signing.sign(workspace.id, b"text")
    assert signing.verify(workspace.id, anew, b"text") == Verdict.VALID
    assert signing.verify(workspace.id, envelope, b"text") == Verdict.INVALID


def test_another_workspaces_keyring_does_not_serve(workspace: Workspace, other_workspace: Workspace) -> None:
    """O34, I16."""
    signed(workspace)
    theirs = signed(other_workspace)
    forge(workspace, lambda _: document_of(other_workspace))
    assert verdict(workspace, theirs) == Verdict.INVALID
    assert signed(workspace) == Envelope()


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["active", "keys", "seal", "public", "a"]), inner)
        ),
    )
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_document_but_the_consoles_own_is_ever_used(workspace: Workspace, document: Any) -> None:
    """O34: refused as unavailable, never with another error."""
    with pytest.raises(keyring.Unavailable, match=r"malformed|seal"):
        keyring._check(workspace.id, 1, document)


def test_with_another_encryption_key_nothing_is_signed_or_believed_until_a_new_keyring_is_begun(
    workspace: Workspace, settings: Any
) -> None:
    """O34: losing the key costs what was signed, not the console."""
    before = signed(workspace)
    settings.RECOURSE_ENCRYPTION_KEY = Fernet.generate_key().decode()
    keyring.forget_all()
    assert signed(workspace) == Envelope()
    assert verdict(workspace, before) == Verdict.INVALID
    with pytest.raises(CommandError, match="RECOURSE_ENCRYPTION_KEY"):
        call_command("rotate_signing_key", "--workspace", "acme", stdout=StringIO())
    call_command("rotate_signing_key", "--workspace", "acme", "--begin-anew", stdout=StringIO())
    assert verdict(workspace, signed(workspace)) == Verdict.VALID
    assert verdict(workspace, before) == Verdict.INVALID
    with pytest.raises(CommandError, match="no need to begin anew"):
        call_command("rotate_signing_key", "--workspace", "acme", "--begin-anew", stdout=StringIO())


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(),
        Envelope("ed25519", "", "AAAA"),
        Envelope("ed25519", "no such key", "AAAA"),
        Envelope("ED25519", "{key}", "{signature}"),
        Envelope("none", "{key}", "{signature}"),
        Envelope("ed25519", "{key}", ""),
        Envelope("ed25519", "{key}", "%%%"),
        Envelope("ed25519", "{key}", "ä"),
        Envelope("ed25519", "{key}", "AAAA"),
    ],
)
def test_an_odd_envelope_is_invalid(workspace: Workspace, envelope: Envelope) -> None:
    """O25, O34."""
    good = signed(workspace)
    odd = Envelope(
        envelope.algorithm,
        envelope.key_id.format(key=good.key_id),
        envelope.signature.format(signature=good.signature),
    )
    assert verdict(workspace, odd) == Verdict.INVALID
    assert signing.verify(workspace.id, good, MESSAGE + b".") == Verdict.INVALID
    assert verdict(workspace, good) == Verdict.VALID


# who sees what


def test_anybody_of_the_workspace_can_verify_with_what_the_api_tells(
    workspace: Workspace, people: dict[str, Person], as_person: AsPerson
) -> None:
    """O34: by the public half alone, without the console."""
    before = signed(workspace)
    signing_keys.rotate(actor=people["admin"].actor)
    listed = as_person(people["viewer"]).get("/v1/signing-keys").json()["results"]
    assert [key["status"] for key in listed] == ["active", "retiring"]
    (found,) = [key for key in listed if key["id"] == before.key_id]
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(found["public_key"]))
    public.verify(base64.b64decode(before.signature), MESSAGE)
    assert found["retiring_since"] > found["created_at"]


def test_no_private_half_leaves_the_keyring(
    workspace: Workspace, people: dict[str, Person], as_person: AsPerson, settings: Any
) -> None:
    """Not through the API, the admin site, a command, an audit event or a text of the objects."""
    key_id = signed(workspace).key_id
    encrypted = document_of(workspace)["keys"][key_id]["private"]
    private = Fernet(settings.RECOURSE_ENCRYPTION_KEY).decrypt(encrypted.encode())
    boss = people["admin"].user
    boss.is_staff = boss.is_superuser = True
    boss.save()
    site = Client()
    site.force_login(boss)
    out = StringIO()
    call_command("signing_keys", "--workspace", "acme", stdout=out)
    call_command("signing_keys", "--workspace", "acme", "--json", stdout=out)
    told = [out.getvalue(), repr(keyring.signing_key(workspace.id))]
    told += [
        site.get(f"/admin/pipelines/localkeyring/{end}").content.decode() for end in ("", f"{workspace.pk}/change/")
    ]
    admin = as_person(people["admin"])
    told += [admin.get("/v1/signing-keys").content.decode(), admin.post("/v1/signing-keys/rotate").content.decode()]
    told.append(str(list(AuditEvent.objects.values())))
    assert len([text for text in told if key_id in text]) == 5, "the right things were looked at"
    for secret in (encrypted, base64.b64encode(private).decode(), private.hex(), repr(private)):
        assert [text for text in told if secret in text] == []


def test_a_new_workspace_comes_with_its_keyring() -> None:
    made, _ = catalog.ensure_workspace("acme")
    assert list(states(made).values()) == ["active"]


def test_the_commands_list_rotate_and_revoke(workspace: Workspace) -> None:
    """Whoever has a shell acts as an administrator, by their name there."""
    first = signed(workspace).key_id

    def run(*words: str) -> str:
        out = StringIO()
        call_command(*words, "--workspace", "acme", stdout=out, stderr=StringIO())
        return out.getvalue().strip()

    second = run("rotate_signing_key", "--reason", "spring")
    with pytest.raises(CommandError, match="not the active key") as caught:
        run("rotate_signing_key", "--replaces", first)
    assert caught.value.returncode == 2
    assert run("revoke_signing_key", first, "--reason", "leaked") == second
    listed = {key["id"]: key["status"] for key in json.loads(run("signing_keys", "--json"))}
    assert listed == {first: "revoked", second: "active"}
    assert [line.split()[:2] for line in run("signing_keys").splitlines()] == [[second, "active"], [first, "revoked"]]
    assert set(AuditEvent.objects.values_list("channel", flat=True)) == {"command"}


def test_a_run_outlives_rotations(
    workspace: Workspace, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """O34, O35: the checkpoints of one run, each by the key of its time, all valid."""
    run = start_run("first", "second")
    for _ in range(2):
        signing_keys.rotate(actor=people["admin"].actor)
        hand.report(hand.take())
    keys = list(Checkpoint.objects.filter(run=run).order_by("sequence").values_list("key_id", flat=True))
    assert len(keys) == len(set(keys)) == 3


def _other_process(*words: str, data: Path) -> str:
    """What a command prints that runs in a process of its own, on this database and with this console's key."""
    from django.conf import settings as console

    done = subprocess.run(
        [sys.executable, "manage.py", *words, "--data", str(data)],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": database_url(), "RECOURSE_ENCRYPTION_KEY": console.RECOURSE_ENCRYPTION_KEY},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()
