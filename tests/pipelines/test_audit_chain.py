"""The audit chain: what is sealed how, and every way to change what was written that a check must find (I17, F147)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from config import celery_settings
from pipelines import audit, audit_chain, keyring, signing, signing_keys
from pipelines.audit_chain import GENESIS, Head, Report, newest_head, seal, seal_some, verify
from pipelines.models import AuditEvent, AuditHead, AuditPending, AuditSeal, Run, Workspace
from pipelines.sql import query
from pipelines.tasks import seal_audit
from tests.cast import Api, Person

Tell = Callable[..., None]


@pytest.fixture
def tell(people: dict[str, Person]) -> Tell:
    """Writes so many audit events as an operator: tell(3)."""

    def write(count: int = 1, action: str = "run.pause", who: str = "operator") -> None:
        for number in range(count):
            audit.record(people[who].actor, action, audit.ALLOWED, reason=f"reason {number}", data={"number": number})

    return write


@contextmanager
def as_owner() -> Iterator[None]:
    """What the tables' owner can do: no trigger of them runs."""
    tables = ("pipelines_auditevent", "pipelines_auditseal", "pipelines_audithead")
    run("SET CONSTRAINTS ALL IMMEDIATE")
    for table in tables:
        run(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    yield
    run("SET CONSTRAINTS ALL IMMEDIATE")
    for table in tables:
        run(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def run(sql: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def event_at(workspace: Workspace, position: int) -> AuditEvent:
    return AuditEvent.objects.get(id=AuditSeal.objects.get(workspace=workspace, position=position).event)


def test_what_is_sealed_follows_one_after_the_other(workspace: Workspace, tell: Tell) -> None:
    """I17: positions without holes in the order of time; each hash over the one before and the event's own text."""
    tell(5)
    assert (seal(), AuditPending.objects.count()) == (5, 0)
    tell(3)
    assert seal() == 3
    seals = list(AuditSeal.objects.order_by("position"))
    assert [one.position for one in seals] == list(range(1, 9))
    events = list(AuditEvent.objects.order_by("at", "id"))
    assert [one.event for one in seals] == [event.id for event in events]
    last = GENESIS
    for one, event in zip(seals, events, strict=True):
        last = sha256(last + event.canonical.encode()).digest()
        assert bytes(one.hash) == last
    head = newest_head(workspace.id)
    assert head is not None
    assert (head.position, head.hash) == (8, last.hex())
    assert signing.verify(workspace.id, head.envelope, head.message) == "valid"
    assert verify(workspace.id) == Report(checked=8)
    assert seal() == 0


def test_each_workspace_has_a_chain_of_its_own(workspace: Workspace, tell: Tell, outsider: Person) -> None:
    tell(2)
    audit.record(outsider.actor, "run.pause", audit.ALLOWED)
    assert seal() == 3
    assert verify(workspace.id).checked == 2
    assert verify(outsider.actor.workspace_id).checked == 1


def test_what_waits_is_told_and_holds(workspace: Workspace, tell: Tell) -> None:
    tell(2)
    seal()
    tell(1)
    assert verify(workspace.id) == Report(checked=2, waiting=1)


def test_the_text_is_the_same_whatever_the_session_says(workspace: Workspace, tell: Tell) -> None:
    tell(1)
    seal()
    for setting in ("TimeZone = 'Asia/Kathmandu'", "DateStyle = 'German, DMY'", "extra_float_digits = -3"):
        run(f"SET LOCAL {setting}")
        assert query("SELECT count(*) FROM pipelines_auditevent e WHERE canonical = recourse_audit_text(e)") == [(1,)]
    text = json.loads(AuditEvent.objects.values_list("canonical", flat=True).get())
    assert (text[0], text[4], text[-1]) == ("recourse.audit.1", "run.pause", {"number": 0})


def test_nobody_writes_the_text_but_the_database(workspace: Workspace) -> None:
    event = AuditEvent.objects.create(workspace=workspace, action="a", outcome="allowed", canonical="mine")
    event.refresh_from_db()
    assert event.canonical.startswith('["recourse.audit.1"')
    assert AuditPending.objects.get().event == event.id


@pytest.mark.parametrize("model", [AuditEvent, AuditSeal, AuditHead])
@pytest.mark.parametrize("retention", ["on", "off"])
def test_rows_are_only_ever_added_for_retention_too(model: Any, retention: str, tell: Tell) -> None:
    """I7, model §3.13: audit events stay."""
    tell(1)
    seal()
    run(f"SET LOCAL recourse.retention = '{retention}'")
    for change in (lambda: model.objects.all().delete(), lambda: model.objects.update(workspace=uuid.uuid4())):
        with pytest.raises(DatabaseError, match="only ever added"), transaction.atomic():
            change()
    assert model.objects.count() == 1


# tampering, as the tables' owner


def rehash(workspace: Workspace, first: int = 1) -> None:
    """Makes all hashes fit what the events say now, as somebody would who knows how they are made."""
    before = AuditSeal.objects.filter(workspace=workspace, position=first - 1).first()
    last = bytes(before.hash) if before else GENESIS
    for one in AuditSeal.objects.filter(workspace=workspace, position__gte=first).order_by("position"):
        last = sha256(last + AuditEvent.objects.get(id=one.event).canonical.encode()).digest()
        run("UPDATE pipelines_auditseal SET hash = %s WHERE id = %s", last, one.id)


def rewrite(event: AuditEvent) -> None:
    run("UPDATE pipelines_auditevent e SET reason = 'never' WHERE id = %s", event.id)
    run("UPDATE pipelines_auditevent e SET canonical = recourse_audit_text(e) WHERE id = %s", event.id)


def edit(workspace: Workspace) -> None:
    run("UPDATE pipelines_auditevent SET reason = 'never' WHERE id = %s", event_at(workspace, 5).id)


def edit_with_its_text(workspace: Workspace) -> None:
    rewrite(event_at(workspace, 5))


def edit_the_text(workspace: Workspace) -> None:
    run("UPDATE pipelines_auditevent SET canonical = canonical || ' ' WHERE id = %s", event_at(workspace, 5).id)


def edit_and_rehash(workspace: Workspace) -> None:
    rewrite(event_at(workspace, 5))
    rehash(workspace)


def edit_rehash_and_move_the_heads(workspace: Workspace) -> None:
    edit_and_rehash(workspace)
    run(
        "UPDATE pipelines_audithead h SET hash = encode(s.hash, 'hex') FROM pipelines_auditseal s"
        " WHERE s.workspace_id = h.workspace_id AND s.position = h.position"
    )


def edit_rehash_and_forge_one_head(workspace: Workspace) -> None:
    edit_rehash_and_move_the_heads(workspace)
    run("DELETE FROM pipelines_audithead WHERE position < 9")


def delete(workspace: Workspace) -> None:
    run("DELETE FROM pipelines_auditevent WHERE id = %s", event_at(workspace, 5).id)


def delete_with_its_seal(workspace: Workspace) -> None:
    delete(workspace)
    run("DELETE FROM pipelines_auditseal WHERE workspace_id = %s AND position = 5", workspace.id)


def delete_and_close_the_gap(workspace: Workspace) -> None:
    delete_with_its_seal(workspace)
    for position in range(6, 10):
        run("UPDATE pipelines_auditseal SET position = %s WHERE position = %s", position - 1, position)


def delete_close_the_gap_and_rehash(workspace: Workspace) -> None:
    delete_and_close_the_gap(workspace)
    rehash(workspace)


def reorder(workspace: Workspace) -> None:
    for old, new in ((5, 100), (6, 5), (100, 6)):
        run("UPDATE pipelines_auditseal SET position = %s WHERE position = %s", new, old)


def reorder_and_rehash(workspace: Workspace) -> None:
    reorder(workspace)
    rehash(workspace)


def exchange_what_two_seals_name(workspace: Workspace) -> None:
    fifth, sixth = event_at(workspace, 5).id, event_at(workspace, 6).id
    for position, event in ((5, uuid.uuid4()), (6, fifth), (5, sixth)):
        run("UPDATE pipelines_auditseal SET event = %s WHERE position = %s", event, position)


def slip_in(workspace: Workspace) -> uuid.UUID:
    event = AuditEvent.objects.create(workspace=workspace, action="run.cancel", outcome="allowed", actor="nobody")
    run("UPDATE pipelines_auditevent e SET canonical = recourse_audit_text(e) WHERE id = %s", event.id)
    return event.id


def insert_with_a_seal(workspace: Workspace) -> None:
    event = slip_in(workspace)
    for position in range(9, 4, -1):
        run("UPDATE pipelines_auditseal SET position = %s WHERE position = %s", position + 1, position)
    text = AuditEvent.objects.get(id=event).canonical
    before = bytes(AuditSeal.objects.get(position=4).hash)
    AuditSeal.objects.create(workspace=workspace, position=5, event=event, hash=sha256(before + text.encode()).digest())


def insert_with_a_seal_and_rehash(workspace: Workspace) -> None:
    insert_with_a_seal(workspace)
    rehash(workspace)


def insert_at_the_end(workspace: Workspace) -> None:
    event = slip_in(workspace)
    AuditSeal.objects.create(workspace=workspace, position=10, event=event, hash=bytes(32))
    rehash(workspace, 10)


def insert_without_a_seal(workspace: Workspace) -> None:
    slip_in(workspace)


def cut_seals(workspace: Workspace) -> None:
    run("DELETE FROM pipelines_auditevent WHERE id = %s", event_at(workspace, 9).id)
    run("DELETE FROM pipelines_auditseal WHERE position = 9")


def drop_the_heads(workspace: Workspace) -> None:
    run("DELETE FROM pipelines_audithead")


def blank_the_signature(workspace: Workspace) -> None:
    run("UPDATE pipelines_audithead SET signature = '', algorithm = '', key_id = ''")


def exchange_signatures(workspace: Workspace) -> None:
    first = AuditHead.objects.order_by("position")[0]
    run("UPDATE pipelines_audithead SET signature = %s WHERE position = 9", first.signature)


def unseal(workspace: Workspace) -> None:
    """The event goes back among those that wait, so that it may be edited and sealed again."""
    event = event_at(workspace, 9)
    run("DELETE FROM pipelines_auditseal WHERE position = 9")
    rewrite(event)
    run("INSERT INTO pipelines_auditpending (event, workspace) VALUES (%s, %s)", event.id, workspace.id)


def edit_and_have_the_database_call_it_written(workspace: Workspace) -> None:
    run("UPDATE pipelines_auditevent SET reason = 'never said' WHERE id = %s", event_at(workspace, 5).id)
    run(
        "CREATE OR REPLACE FUNCTION recourse_audit_text(e pipelines_auditevent) RETURNS text LANGUAGE sql STABLE"
        " AS 'SELECT e.canonical'"
    )


TAMPERINGS = [
    (edit, 5),
    (edit_with_its_text, 5),
    (edit_the_text, 5),
    (edit_and_rehash, 6),
    (edit_rehash_and_move_the_heads, 4),
    (edit_rehash_and_forge_one_head, 1),
    (edit_and_have_the_database_call_it_written, 5),
    (delete, 5),
    (delete_with_its_seal, 5),
    (delete_and_close_the_gap, 5),
    (delete_close_the_gap_and_rehash, 9),
    (reorder, 5),
    (reorder_and_rehash, 6),
    (exchange_what_two_seals_name, 5),
    (insert_with_a_seal, 6),
    (insert_with_a_seal_and_rehash, 10),
    (insert_at_the_end, 10),
    (insert_without_a_seal, None),
    (cut_seals, 9),
    (drop_the_heads, 1),
    (blank_the_signature, 1),
    (exchange_signatures, 7),
    (unseal, 9),
]


@pytest.fixture
def chain(workspace: Workspace, tell: Tell) -> Workspace:
    """A workspace with nine sealed events and heads at 3, 6 and 9."""
    for _ in range(3):
        tell(3)
        assert seal() == 3
    return workspace


@pytest.mark.parametrize(("tamper", "position"), TAMPERINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_the_owner_of_the_tables_does_is_found(
    chain: Workspace, tamper: Callable[[Workspace], None], position: int | None, tell: Tell
) -> None:
    """F147, R44: the first position that does not hold; and no sealing afterwards makes it good."""
    with as_owner():
        tamper(chain)
    found = verify(chain.id).fault
    assert found is not None
    assert found.position == position
    tell(2)
    seal()
    assert verify(chain.id).fault is not None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", "2020-01-01T00:00:00Z"),
        ("action", "run.other"),
        ("outcome", "denied"),
        ("code", "x"),
        ("user_id", None),
        ("actor", "nobody"),
        ("channel", "admin"),
        ("on_behalf_of", "somebody"),
        ("run", uuid.uuid4()),
        ("stage", uuid.uuid4()),
        ("reason", ""),
        ("before", '{"run": "failed"}'),
        ("after", '{"run": "paused"}'),
        ("plan_digest", "0" * 64),
        ("request_id", "another"),
        ("data", '{"number": 2}'),
    ],
)
def test_no_column_is_edited_unseen(chain: Workspace, column: str, value: Any) -> None:
    event = event_at(chain, 2)
    with as_owner():
        run(f"UPDATE pipelines_auditevent SET {column} = %s WHERE id = %s", value, event.id)
    found = verify(chain.id).fault
    assert found is not None
    assert (found.position, found.event, found.what) == (2, event.id, "was edited")


def test_every_column_stands_in_the_text(db: None) -> None:
    """A column that is added later must get into `recourse_audit_text` with it."""
    columns = {field.column for field in AuditEvent._meta.concrete_fields} - {"canonical"}
    ((source,),) = query("SELECT prosrc FROM pg_proc WHERE proname = 'recourse_audit_text'")
    assert [column for column in columns if f"e.{column}" not in source] == []


def test_an_event_moved_to_another_workspace_is_missed(chain: Workspace, other_workspace: Workspace) -> None:
    event = event_at(chain, 4)
    with as_owner():
        run("UPDATE pipelines_auditevent SET workspace_id = %s WHERE id = %s", other_workspace.id, event.id)
        run("UPDATE pipelines_auditevent e SET canonical = recourse_audit_text(e) WHERE id = %s", event.id)
    found = verify(chain.id).fault
    assert found is not None
    assert found.position == 4
    stray = verify(other_workspace.id).fault
    assert stray is not None
    assert stray.event == event.id


@pytest.mark.parametrize("what", ["edit", "delete", "forget"])
def test_what_still_waits_is_not_changed_unseen(chain: Workspace, tell: Tell, what: str) -> None:
    tell(1)
    event = AuditPending.objects.get().event
    with as_owner():
        if what == "edit":
            run("UPDATE pipelines_auditevent SET reason = 'never' WHERE id = %s", event)
        elif what == "delete":
            run("DELETE FROM pipelines_auditevent WHERE id = %s", event)
        else:
            AuditPending.objects.all().delete()
    for _ in range(2):
        found = verify(chain.id).fault
        assert found is not None
        assert found.event == event
        seal()


def test_what_is_put_among_those_that_wait_holds_up_no_chain(
    chain: Workspace, other_workspace: Workspace, tell: Tell
) -> None:
    """What is sealed already, or another's, is never sealed again; the rest is, and the other chain has a fault."""
    sealed = event_at(chain, 4).id
    run("INSERT INTO pipelines_auditpending (event, workspace) VALUES (%s, %s)", sealed, other_workspace.id)
    tell(2)
    assert seal() == 2
    assert (verify(chain.id).fault, seal()) == (None, 0)
    found = verify(other_workspace.id).fault
    assert found is not None
    assert found.event == sealed


def test_an_event_that_says_it_was_long_ago_is_found(chain: Workspace) -> None:
    """Written through the front door, so that it is sealed; but with a time of its own."""
    event = AuditEvent.objects.create(
        workspace=chain, action="run.cancel", outcome="allowed", actor="nobody", at="2020-01-01T00:00:00Z"
    )
    seal()
    found = verify(chain.id).fault
    assert found is not None
    assert (found.position, found.event) == (10, event.id)


# the exported head


def cut_tail(workspace: Workspace, kept: int) -> None:
    with as_owner():
        run(
            "DELETE FROM pipelines_auditevent WHERE id IN (SELECT event FROM pipelines_auditseal"
            " WHERE workspace_id = %s AND position > %s)",
            workspace.id,
            kept,
        )
        run("DELETE FROM pipelines_auditseal WHERE workspace_id = %s AND position > %s", workspace.id, kept)
        run("DELETE FROM pipelines_audithead WHERE workspace_id = %s AND position > %s", workspace.id, kept)


def exported(workspace: Workspace) -> Head:
    head = newest_head(workspace.id)
    assert head is not None
    return audit_chain.read_head(json.dumps(head.document()))


def test_a_tail_cut_with_its_seals_and_heads_is_found_against_an_exported_head(chain: Workspace, tell: Tell) -> None:
    """F147: delete the last ten rows; the chain alone cannot know."""
    tell(10)
    seal()
    head = exported(chain)
    assert verify(chain.id, head) == Report(checked=19)
    cut_tail(chain, 9)
    assert verify(chain.id).fault is None
    found = verify(chain.id, head).fault
    assert found is not None
    assert found.position == 10
    tell(12)
    assert seal() == 12
    again = verify(chain.id, head).fault
    assert again is not None
    assert again.position == 19


def test_an_exported_head_still_holds_when_the_chain_went_on(chain: Workspace, tell: Tell) -> None:
    head = exported(chain)
    tell(4)
    seal()
    assert verify(chain.id, head) == Report(checked=13)


@pytest.mark.parametrize(
    "change", [{"position": 3}, {"hash": "0" * 64}, {"sealed_at": "2020-01-01T00:00:00+00:00"}, {"signature": ""}]
)
def test_an_exported_head_that_was_changed_proves_nothing(chain: Workspace, change: dict[str, Any]) -> None:
    head = newest_head(chain.id)
    assert head is not None
    found = verify(chain.id, audit_chain.read_head(json.dumps(head.document() | change))).fault
    assert found is not None
    assert "exported head" in found.what


# sealing under trouble


def test_a_forged_end_is_not_gone_on_with(chain: Workspace, tell: Tell, outsider: Person) -> None:
    """It would be signed over; the events wait, and other workspaces are sealed all the same."""
    with as_owner():
        edit_rehash_and_move_the_heads(chain)
    tell(2)
    audit.record(outsider.actor, "run.pause", audit.ALLOWED)
    assert seal() == 1
    assert AuditPending.objects.count() == 2
    with pytest.raises(audit_chain.ChainBroken):
        seal_some(chain.id)


def test_without_a_key_all_waits_and_nothing_is_lost(
    chain: Workspace, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise keyring.Unavailable("the store does not answer")

    tell(2)
    with monkeypatch.context() as patch:
        patch.setattr(keyring, "read", away)
        assert seal() == 0
        patch.undo()
        patch.setattr(keyring, "signing_key", away)
        assert seal() == 0
    assert verify(chain.id) == Report(checked=9, waiting=2)
    assert seal() == 2
    assert verify(chain.id) == Report(checked=11)


def test_a_revoked_key_signs_no_head_and_vouches_for_none(chain: Workspace, people: dict[str, Person]) -> None:
    """O36: the revocation is itself sealed at once, with the key that came after."""
    before = exported(chain)
    signing_keys.revoke(before.envelope.key_id, actor=people["admin"].actor)
    found = verify(chain.id).fault
    assert found is not None
    assert "revoked" in found.what
    assert seal() == 1
    assert verify(chain.id) == Report(checked=10)
    against = verify(chain.id, before).fault
    assert against is not None
    assert "revoked" in against.what


def test_a_key_that_was_read_before_its_revocation_signs_no_head(
    chain: Workspace, tell: Tell, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process goes on with the key that it read seconds ago; its next sealing notices."""
    stale = keyring.signing_key(chain.id)
    signing_keys.revoke(stale.key_id, actor=people["admin"].actor)
    fresh, asked = keyring.signing_key, []

    def as_read_before(workspace_id: uuid.UUID) -> keyring.SigningKey:
        asked.append(workspace_id)
        return stale if len(asked) == 1 else fresh(workspace_id)

    monkeypatch.setattr(keyring, "signing_key", as_read_before)
    assert seal() == 1
    head = newest_head(chain.id)
    assert head is not None
    assert head.envelope.key_id != stale.key_id
    assert verify(chain.id) == Report(checked=10)


def test_a_rotation_leaves_the_chain_whole(chain: Workspace, people: dict[str, Person]) -> None:
    signing_keys.rotate(actor=people["admin"].actor)
    assert seal() == 1
    assert verify(chain.id) == Report(checked=10)


def test_after_lost_keys_the_chain_goes_on_under_the_new_one(
    chain: Workspace, people: dict[str, Person], tell: Tell
) -> None:
    """What begins anew is an event itself; every event before it was checked before it was signed for."""
    lose_the_keys(chain)
    tell(1)
    assert seal() == 0
    signing_keys.rotate(actor=people["admin"].actor, begin_anew=True)
    assert verify(chain.id) == Report(checked=11)


def test_after_lost_keys_a_chain_that_does_not_hold_is_not_signed_for(
    chain: Workspace, people: dict[str, Person]
) -> None:
    with as_owner():
        edit_with_its_text(chain)
    lose_the_keys(chain)
    signing_keys.rotate(actor=people["admin"].actor, begin_anew=True)
    found = verify(chain.id).fault
    assert found is not None
    assert found.position == 5
    assert AuditPending.objects.count() == 1


def lose_the_keys(workspace: Workspace) -> None:
    """What the keyring is encrypted with is another now."""
    run("UPDATE pipelines_localkeyring SET document = jsonb_set(document::jsonb, '{seal}', '\"x\"')")
    keyring.forget_all()


def test_a_sealing_that_breaks_off_leaves_all_of_it_waiting(
    chain: Workspace, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(3)
    with monkeypatch.context() as patch:
        broken = audit_chain.execute

        def breaks_off(sql: str, params: Any = ()) -> int:
            if "audithead" in sql:
                raise ConnectionResetError
            return broken(sql, params)

        patch.setattr(audit_chain, "execute", breaks_off)
        with pytest.raises(ConnectionResetError):
            seal_some(chain.id)
    assert verify(chain.id) == Report(checked=9, waiting=3)
    assert seal() == 3
    assert verify(chain.id) == Report(checked=12)


def test_a_long_downtime_is_made_up_for_in_batches(workspace: Workspace, tell: Tell) -> None:
    tell(23)
    counts = []
    while count := seal_some(workspace.id, limit=10):
        counts.append(count)
    assert counts == [10, 10, 3]
    assert list(AuditHead.objects.order_by("position").values_list("position", flat=True)) == [10, 20, 23]
    assert verify(workspace.id) == Report(checked=23)


def test_more_events_than_are_checked_at_once(
    workspace: Workspace, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_chain, "CHECKED_AT_ONCE", 4)
    tell(13)
    seal()
    assert verify(workspace.id) == Report(checked=13)
    event = event_at(workspace, 9)
    with as_owner():
        rewrite(event)
    found = verify(workspace.id).fault
    assert found is not None
    assert (found.position, found.event) == (9, event.id)


def test_sealing_is_asked_for_twice_a_second(tell: Tell, tmp_path: Path) -> None:
    """Within a second: a lost or late turn is made up for by the next, a doubled one finds nothing."""
    tell(3)
    assert (seal_audit(), seal_audit()) == (3, 0)
    settings = celery_settings.configuration("memory://", tmp_path)
    assert settings["beat_schedule"]["seal-audit"]["schedule"] <= 0.5
    assert settings["task_routes"]["pipelines.tasks.seal_audit"]["queue"] == "recourse.clock"


# commands and routes


def call(*arguments: str) -> str:
    from io import StringIO

    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_the_command_says_that_it_holds_and_where_it_does_not(chain: Workspace, tell: Tell, tmp_path: Path) -> None:
    """Contract §1: exit code 1 and the first broken event; what waits is sealed first."""
    tell(1)
    assert call("verify_audit") == "acme: 10 sealed events hold\n"
    file = tmp_path / "head.json"
    file.write_text(call("export_audit_head", "--workspace", "acme"))
    assert call("verify_audit", "--workspace", "acme", "--head", str(file)) == "acme: 10 sealed events hold\n"
    cut_tail(chain, 9)
    assert call("verify_audit") == "acme: 9 sealed events hold\n"
    with pytest.raises(CommandError, match="does not hold: acme") as cut:
        call("verify_audit", "--head", str(file))
    assert cut.value.returncode == 1
    event = event_at(chain, 5)
    with as_owner():
        rewrite(event)
    with pytest.raises(CommandError) as caught:
        call("verify_audit", "--workspace", "acme")
    assert caught.value.returncode == 1


def test_the_command_names_the_first_broken_event(chain: Workspace) -> None:
    from io import StringIO

    event = event_at(chain, 5)
    with as_owner():
        rewrite(event)
    out = StringIO()
    with pytest.raises(CommandError):
        call_command("verify_audit", stdout=out)
    assert f"position 5: event {event.id}" in out.getvalue()


def test_a_head_that_is_none_or_anothers_is_refused(
    chain: Workspace, other_workspace: Workspace, tmp_path: Path
) -> None:
    file = tmp_path / "head.json"
    for text in ("", "[]", "{}", '{"hash": 1}'):
        file.write_text(text)
        with pytest.raises(CommandError):
            call("verify_audit", "--head", str(file))
    file.write_text(call("export_audit_head", "--workspace", "acme"))
    with pytest.raises(CommandError, match="another workspace"):
        call("verify_audit", "--workspace", "globex", "--head", str(file))


def test_its_members_read_the_heads_and_nobody_else(
    chain: Workspace, people: dict[str, Person], outsider: Person, as_person: Callable[[Person], Api], api: Api
) -> None:
    """O3: as `export_audit_head` prints them, newest first."""
    told = as_person(people["viewer"]).get("/v1/audit-heads").json()["results"]
    assert [head["position"] for head in told] == [9, 6, 3]
    assert told[0] == exported(chain).document() | {"id": told[0]["id"]}
    assert audit_chain.read_head(json.dumps(told[0])) == exported(chain)
    assert as_person(outsider).get("/v1/audit-heads").json()["results"] == []
    assert api.get("/v1/audit-heads").status_code == 403


def test_real_verbs_are_sealed_too(
    workspace: Workspace, start_run: Callable[..., Run], people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    client = as_person(people["operator"])
    run = start_run("first")
    for verb in ("pause", "resume", "cancel", "cancel"):
        client.post(f"/v1/executions/{run.id}/{verb}", {"reason": "r"})
    assert seal() == 4
    assert verify(workspace.id) == Report(checked=4)
