"""Keyrings in Vault: over real HTTP against a KV version 2 server of the tests' own, its conflicts and its faults."""

from __future__ import annotations

import base64
import io
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from structlog.testing import capture_logs

from pipelines import catalog, keyring, signing, signing_keys, vault
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Checkpoint, LocalKeyring, Run, Workspace
from pipelines.signing import Envelope, Verdict
from tests.cast import Api, Person
from tests.vault_server import ROOT_TOKEN, Vault, make_certificate, vault_server

pytestmark = pytest.mark.django_db
StartRun = Callable[..., Run]
MESSAGE = b"where the run stood"


@pytest.fixture
def server() -> Iterator[Vault]:
    with vault_server() as running:
        yield running


@pytest.fixture
def kept_in_vault(server: Vault, settings: Any) -> Iterator[Vault]:
    """The console as an operator would set it up for this server."""
    settings.RECOURSE_KEYRING = "vault"
    settings.RECOURSE_VAULT_ADDR = server.url
    settings.RECOURSE_VAULT_TOKEN = ROOT_TOKEN
    settings.RECOURSE_VAULT_TIMEOUT_MS = 5000
    keyring.forget_all()
    yield server
    keyring.forget_all()
    _hang_up()


def path_of(workspace: Workspace) -> str:
    return f"recourse/keyrings/{workspace.id}"


def signed(workspace: Workspace) -> Envelope:
    return signing.sign(workspace.id, MESSAGE)


def verdict(workspace: Workspace, envelope: Envelope) -> Verdict:
    return signing.verify(workspace.id, envelope, MESSAGE)


def fault_of(workspace: Workspace) -> keyring.Unavailable:
    with pytest.raises(keyring.Unavailable) as caught:
        keyring.signing_key(workspace.id)
    return caught.value


def _hang_up() -> None:
    client = getattr(vault._local, "client", None)
    if client is not None:
        client.adapter.close()
    vault._local.__dict__.clear()


# what is kept there


def test_the_first_signature_makes_the_keyring_in_vault(kept_in_vault: Vault, workspace: Workspace) -> None:
    """O34, O35: with check-and-set from nothing; nothing of it is in the database."""
    envelope = signed(workspace)
    assert verdict(workspace, envelope) == Verdict.VALID
    (write,) = kept_in_vault.writes()
    assert write.path == f"/v1/secret/data/{path_of(workspace)}"
    assert write.body["options"] == {"cas": 0}
    assert write.headers["X-Vault-Token"] == ROOT_TOKEN
    assert kept_in_vault.newest(path_of(workspace))["active"] == envelope.key_id
    assert not LocalKeyring.objects.exists()


def test_private_keys_are_encrypted_in_vault_too(kept_in_vault: Vault, workspace: Workspace, settings: Any) -> None:
    """Whoever reads Vault alone cannot sign."""
    envelope = signed(workspace)
    kept = kept_in_vault.newest(path_of(workspace))["keys"][envelope.key_id]
    private = Fernet(settings.RECOURSE_ENCRYPTION_KEY).decrypt(kept["private"].encode())
    assert private == keyring.signing_key(workspace.id).private.private_bytes_raw()
    told = json.dumps(kept_in_vault.writes()[0].body)
    assert base64.b64encode(private).decode() not in told
    assert private.hex() not in told


def test_a_checkpoint_of_a_run_is_signed_with_it(
    kept_in_vault: Vault, start_run: StartRun, workspace: Workspace
) -> None:
    """O34."""
    checkpoint = Checkpoint.objects.get(run=start_run("first"))
    assert checkpoint.key_id == kept_in_vault.newest(path_of(workspace))["active"]


def test_a_rotation_keeps_the_old_key_for_verifying(
    kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person]
) -> None:
    """O35: version by version; the retired key's private half is gone from the newest one."""
    before = signed(workspace)
    done = signing_keys.rotate(actor=people["admin"].actor)
    after = signed(workspace)
    assert after.key_id == done.active != before.key_id
    assert [verdict(workspace, one) for one in (before, after)] == [Verdict.VALID, Verdict.VALID]
    assert [write.body["options"]["cas"] for write in kept_in_vault.writes()] == [0, 1]
    assert "private" not in kept_in_vault.newest(path_of(workspace))["keys"][before.key_id]


def test_a_revoked_key_fails_closed_at_once_also_in_the_overlap(
    kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person]
) -> None:
    """O36: verification asks Vault each time, and no cache answers for it."""
    before = signed(workspace)
    signing_keys.rotate(actor=people["admin"].actor)
    assert verdict(workspace, before) == Verdict.VALID
    signing_keys.revoke(before.key_id, actor=people["admin"].actor)
    assert verdict(workspace, before) == Verdict.REVOKED_KEY
    assert verdict(workspace, signed(workspace)) == Verdict.VALID


def test_a_new_workspace_has_its_keyring_once_it_is_there_for_good(
    kept_in_vault: Vault, django_capture_on_commit_callbacks: Any
) -> None:
    """A workspace that was undone leaves nothing in Vault."""
    with transaction.atomic():
        catalog.ensure_workspace("undone")
        transaction.set_rollback(True)
    with django_capture_on_commit_callbacks(execute=True):
        made, _ = catalog.ensure_workspace("lasting")
        assert kept_in_vault.secrets == {}
    assert list(kept_in_vault.secrets) == [path_of(made)]


def test_a_workspace_is_made_although_vault_is_sealed(
    kept_in_vault: Vault, django_capture_on_commit_callbacks: Any
) -> None:
    kept_in_vault.sealed = True
    with django_capture_on_commit_callbacks(execute=True):
        made, _ = catalog.ensure_workspace("lasting")
    kept_in_vault.sealed = False
    keyring.forget_all()
    assert verdict(made, signed(made)) == Verdict.VALID


def test_the_namespace_is_named_where_there_is_one(kept_in_vault: Vault, workspace: Workspace, settings: Any) -> None:
    kept_in_vault.namespace = settings.RECOURSE_VAULT_NAMESPACE = "team-a"
    assert verdict(workspace, signed(workspace)) == Verdict.VALID


def test_a_token_file_is_read_anew_each_time(
    kept_in_vault: Vault, workspace: Workspace, settings: Any, tmp_path: Path, later: Callable[[float], None]
) -> None:
    """Vault Agent renews it while the console runs."""
    file = tmp_path / "token"
    file.write_text(f"{ROOT_TOKEN}\n")
    settings.RECOURSE_VAULT_TOKEN, settings.RECOURSE_VAULT_TOKEN_FILE = "", str(file)
    assert signed(workspace).key_id
    kept_in_vault.tokens = {"hvs.another": kept_in_vault.tokens[ROOT_TOKEN]}
    later(6)
    assert signed(workspace) == Envelope()
    file.write_text("hvs.another")
    later(6)
    assert signed(workspace).key_id


def test_over_tls_vaults_certificate_is_verified(
    workspace: Workspace, settings: Any, tmp_path: Path, kept_in_vault: Vault
) -> None:
    certificate = make_certificate(tmp_path)
    with vault_server(certificate) as safe:
        settings.RECOURSE_VAULT_ADDR = safe.url
        assert "RECOURSE_VAULT_CA_FILE" in str(fault_of(workspace))
        assert safe.requests == [], "nothing, and no token, was sent to somebody unknown"
        keyring.forget_all()
        settings.RECOURSE_VAULT_CA_FILE = str(certificate.file)
        assert verdict(workspace, signed(workspace)) == Verdict.VALID
        _hang_up()


def test_keys_can_move_into_vault_and_what_was_signed_before_stays_valid(
    kept_in_vault: Vault, workspace: Workspace, settings: Any, people: dict[str, Person]
) -> None:
    """O34: after the copy both stores verify; a second copy writes over nothing."""
    settings.RECOURSE_KEYRING = "local"
    before = signed(workspace)
    signing_keys.rotate(actor=people["admin"].actor)
    out = io.StringIO()
    call_command("copy_keyrings", "--to", "vault", stdout=out)
    assert out.getvalue() == "acme  copied\n"
    settings.RECOURSE_KEYRING = "vault"
    keyring.forget_all()
    assert verdict(workspace, before) == Verdict.VALID
    signing_keys.revoke(before.key_id, actor=people["admin"].actor)
    assert len(kept_in_vault.secrets[path_of(workspace)]) == 2
    settings.RECOURSE_KEYRING = "local"
    with pytest.raises(CommandError, match="already"):
        call_command("copy_keyrings", "--to", "vault", stdout=out)
    assert len(kept_in_vault.secrets[path_of(workspace)]) == 2


# somebody else was faster


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Each act on a thread and a connection of its own, begun together; a refusal is an answer."""
    barrier, answers = threading.Barrier(len(acts)), [None] * len(acts)

    def run(index: int) -> None:
        try:
            barrier.wait(20)
            answers[index] = acts[index]()
        except Refusal as refusal:
            answers[index] = refusal
        finally:
            _hang_up()
            connection.close()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


@pytest.mark.django_db(transaction=True)
def test_of_many_rotations_at_once_one_wins(
    kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person]
) -> None:
    """O35: the others are refused typed, change nothing, and are in the audit."""
    first, admin = signed(workspace).key_id, people["admin"].actor
    answers = at_once(*[lambda: signing_keys.rotate(actor=admin, replaces=first)] * 6)
    won = [answer for answer in answers if isinstance(answer, signing_keys.Changed)]
    lost = [answer for answer in answers if isinstance(answer, Refusal)]
    assert (len(won), [refusal.code for refusal in lost]) == (1, ["stale_request"] * 5)
    assert len(kept_in_vault.secrets[path_of(workspace)]) == 2
    kept = kept_in_vault.newest(path_of(workspace))
    assert (kept["active"], set(kept["keys"])) == (won[0].active, {first, won[0].active})
    events = AuditEvent.objects.filter(action="key.rotate")
    assert sorted(events.values_list("outcome", "code")) == [("allowed", "")] + [("failed", "stale_request")] * 5


@pytest.mark.django_db(transaction=True)
def test_processes_that_need_the_first_key_at_once_share_one(kept_in_vault: Vault, workspace: Workspace) -> None:
    """O35."""

    def sign_first() -> Envelope:
        return Envelope(key_id=keyring._opened(keyring._made(keyring.Keyring(workspace.id, 0, {}))).key_id)

    answers = at_once(*[sign_first] * 6)
    assert len({envelope.key_id for envelope in answers}) == 1
    assert len(kept_in_vault.secrets[path_of(workspace)]) == 1


def test_a_conflict_is_told_as_such(kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person]) -> None:
    """O35: Vault's own 400."""
    signed(workspace)
    stale = keyring.read(workspace.id)
    signing_keys.rotate(actor=people["admin"].actor)
    with pytest.raises(keyring.Conflict):
        keyring.write(stale, stale.rotated())
    assert len(kept_in_vault.secrets[path_of(workspace)]) == 2


def test_a_revocation_goes_through_although_somebody_rotates_meanwhile(
    kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """O36: it is done again on what the other left."""
    admin, first = people["admin"].actor, signed(workspace).key_id
    real, meanwhile = keyring.write, [lambda: real(keyring.read(workspace.id), keyring.read(workspace.id).rotated())]

    def write(*args: Any, **more: Any) -> keyring.Keyring:
        if meanwhile:
            meanwhile.pop()()
        return real(*args, **more)

    monkeypatch.setattr(keyring, "write", write)
    signing_keys.revoke(first, actor=admin)
    states = {key.key_id: key.state for key in signing_keys.listed(workspace.id)}
    assert (states.pop(first), list(states.values())) == ("revoked", ["active"])
    assert len(kept_in_vault.secrets[path_of(workspace)]) == 3


# what can go wrong


def sealed(server: Vault, settings: Any) -> None:
    server.sealed = True


def not_initialised(server: Vault, settings: Any) -> None:
    server.initialised = False


def token_unknown(server: Vault, settings: Any) -> None:
    server.tokens = {}


def token_without_rights(server: Vault, settings: Any) -> None:
    server.tokens = {ROOT_TOKEN: {"update"}}


def token_that_may_not_create(server: Vault, settings: Any) -> None:
    server.tokens = {ROOT_TOKEN: {"read"}}


def no_token(server: Vault, settings: Any) -> None:
    settings.RECOURSE_VAULT_TOKEN = ""


def token_with_a_line_break(server: Vault, settings: Any) -> None:
    settings.RECOURSE_VAULT_TOKEN = f"{ROOT_TOKEN}\nX-Other: header"


def token_file_gone(server: Vault, settings: Any) -> None:
    settings.RECOURSE_VAULT_TOKEN, settings.RECOURSE_VAULT_TOKEN_FILE = "", "nowhere/token"


def wrong_mount(server: Vault, settings: Any) -> None:
    settings.RECOURSE_VAULT_MOUNT = "secrets"


def mount_of_version_1(server: Vault, settings: Any) -> None:
    settings.RECOURSE_VAULT_MOUNT = "kv1"


def wrong_namespace(server: Vault, settings: Any) -> None:
    settings.RECOURSE_VAULT_NAMESPACE = "team-b"


def silence(server: Vault, settings: Any) -> None:
    settings.RECOURSE_VAULT_TIMEOUT_MS = 100
    server.silent.set()


def nobody_there(server: Vault, settings: Any) -> None:
    settings.RECOURSE_VAULT_ADDR = "http://127.0.0.1:9"


def internal_error(server: Vault, settings: Any) -> None:
    server.instead = (500, b'{"errors":["internal error"]}', {"Content-Type": "application/json"})


def bad_gateway(server: Vault, settings: Any) -> None:
    server.instead = (502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})


def too_many(server: Vault, settings: Any) -> None:
    server.instead = (429, b'{"errors":["rate limit quota exceeded"]}', {"Content-Type": "application/json"})


def some_web_page(server: Vault, settings: Any) -> None:
    server.instead = (200, b"<html>Welcome</html>", {"Content-Type": "text/html"})


def half_an_answer(server: Vault, settings: Any) -> None:
    server.instead = (200, b'{"data": {"data": {"act', {"Content-Type": "application/json"})


def other_json(server: Vault, settings: Any) -> None:
    server.instead = (
        200,
        b'{"data": {"data": {}, "metadata": {"version": "1"}}}',
        {"Content-Type": "application/json"},
    )


def redirect(server: Vault, settings: Any) -> None:
    server.instead = (307, b"", {"Location": f"{server.url}/v1/elsewhere"})


def a_teapot(server: Vault, settings: Any) -> None:
    server.instead = (418, b"{}", {"Content-Type": "application/json"})


FAULTS: list[tuple[Callable[[Vault, Any], None], str]] = [
    (sealed, "unseal it"),
    (not_initialised, "initialise and unseal it"),
    (token_unknown, "renew it, or give its policy read, create and update"),
    (token_without_rights, "renew it, or give its policy read, create and update"),
    (token_that_may_not_create, "renew it, or give its policy read, create and update"),
    (no_token, "set RECOURSE_VAULT_TOKEN"),
    (token_with_a_line_break, "set RECOURSE_VAULT_TOKEN"),
    (token_file_gone, "RECOURSE_VAULT_TOKEN_FILE"),
    (wrong_mount, "RECOURSE_VAULT_MOUNT"),
    (mount_of_version_1, "version 2"),
    (wrong_namespace, "renew it, or give its policy"),
    (silence, "RECOURSE_VAULT_TIMEOUT_MS"),
    (nobody_there, "RECOURSE_VAULT_ADDR"),
    (internal_error, "see its own log"),
    (bad_gateway, "cannot reach it"),
    (too_many, "quota"),
    (some_web_page, "RECOURSE_VAULT_ADDR"),
    (half_an_answer, "RECOURSE_VAULT_ADDR"),
    (other_json, "RECOURSE_VAULT_ADDR"),
    (redirect, "let RECOURSE_VAULT_ADDR name the active node"),
    (a_teapot, "cannot be used"),
]


@pytest.mark.parametrize(("break_it", "remedy"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_each_fault_says_what_to_do_and_tells_no_secret(
    kept_in_vault: Vault, workspace: Workspace, settings: Any, break_it: Callable[[Vault, Any], None], remedy: str
) -> None:
    """O34: no signature without a key, no trust either, and nothing of the token, the address or a key in what is
    told, logged or traced."""
    secrets = [ROOT_TOKEN, settings.RECOURSE_ENCRYPTION_KEY, kept_in_vault.url.removeprefix("http://"), "private"]
    if break_it is not token_that_may_not_create:
        before = signed(workspace)
        kept = kept_in_vault.newest(path_of(workspace))["keys"][before.key_id]
        secrets += [kept["private"], kept["public"]]
    keyring.forget_all()
    break_it(kept_in_vault, settings)
    fault = fault_of(workspace)
    assert remedy in str(fault)
    keyring.forget_all()
    with capture_logs() as lines:
        assert signed(workspace) == Envelope()
        assert verdict(workspace, Envelope("ed25519", "some key", "AAAA")) == Verdict.INVALID
    assert {line["event"] for line in lines} - {"signing.cannot_verify"} == {"signing.no_key"}
    traced = io.StringIO()
    traceback.print_exception(fault, file=traced)
    told = f"{fault!r} {lines} {traced.getvalue()}"
    assert [secret for secret in secrets if secret in told] == []


def test_nothing_is_trusted_while_vault_is_sealed_and_all_again_afterwards(
    kept_in_vault: Vault, workspace: Workspace
) -> None:
    """O34: closed, not lost."""
    envelope = signed(workspace)
    kept_in_vault.sealed = True
    assert verdict(workspace, envelope) == Verdict.INVALID
    kept_in_vault.sealed = False
    assert verdict(workspace, envelope) == Verdict.VALID


def test_a_dead_vault_is_asked_once_in_some_seconds(
    kept_in_vault: Vault, workspace: Workspace, other_workspace: Workspace, later: Callable[[float], None]
) -> None:
    """The engine signs in the run's transaction: it waits for a dead Vault once, not each time, and not for each
    workspace; one line in the log tells of each time."""
    kept_in_vault.sealed = True
    with capture_logs() as lines:
        for _ in range(50):
            assert signed(workspace) == Envelope()
            assert signed(other_workspace) == Envelope()
    assert (len(kept_in_vault.requests), len(lines)) == (1, 1)
    later(keyring.FAULT_SECONDS + 1)
    assert signed(workspace) == Envelope()
    assert len(kept_in_vault.requests) == 2
    kept_in_vault.sealed = False
    assert signed(workspace) == Envelope(), "still remembered"
    later(keyring.FAULT_SECONDS + 1)
    assert verdict(workspace, signed(workspace)) == Verdict.VALID
    assert signed(other_workspace).key_id, "the other workspace need not wait for its own turn"


def test_while_one_waits_for_a_dead_vault_the_others_go_on(
    kept_in_vault: Vault, workspace: Workspace, later: Callable[[float], None]
) -> None:
    kept_in_vault.sealed = True
    signed(workspace)
    later(keyring.FAULT_SECONDS + 1)
    kept_in_vault.silent.set()
    waiting = threading.Thread(target=lambda: (signed(workspace), connection.close(), _hang_up()))
    waiting.start()
    while len(kept_in_vault.requests) < 2:
        assert waiting.is_alive()
    assert signed(workspace) == Envelope()
    assert waiting.is_alive(), "nobody waited for it"
    kept_in_vault.go_on.set()
    waiting.join(20)
    assert len(kept_in_vault.requests) == 2


def test_a_run_goes_on_without_a_signature_while_vault_is_away(kept_in_vault: Vault, start_run: StartRun) -> None:
    """O25: its checkpoint has no envelope and is never trusted."""
    kept_in_vault.sealed = True
    checkpoint = Checkpoint.objects.get(run=start_run("first"))
    assert (checkpoint.algorithm, checkpoint.key_id, checkpoint.signature) == ("", "", "")


def test_while_it_is_fresh_the_signing_key_is_not_asked_for_again(
    kept_in_vault: Vault, workspace: Workspace, later: Callable[[float], None]
) -> None:
    signed(workspace)
    asked = len(kept_in_vault.requests)
    for _ in range(50):
        signed(workspace)
    assert len(kept_in_vault.requests) == asked
    later(keyring.SIGNING_CACHE_SECONDS + 1)
    signed(workspace)
    assert len(kept_in_vault.requests) == asked + 1


# documents


def test_a_deleted_keyring_is_not_taken_for_none(kept_in_vault: Vault, workspace: Workspace) -> None:
    """A new one in its place would make everything that was signed before untrusted, without a word."""
    envelope = signed(workspace)
    secret = kept_in_vault.secrets[path_of(workspace)]
    secret[-1].deleted = "2026-01-01T00:00:00Z"
    keyring.forget_all()
    assert "undelete it" in str(fault_of(workspace))
    assert verdict(workspace, envelope) == Verdict.INVALID
    secret[-1].deleted = ""
    keyring.forget_all()
    assert verdict(workspace, signed(workspace)) == verdict(workspace, envelope) == Verdict.VALID
    secret[-1].destroyed = True
    keyring.forget_all()
    assert "undelete it" in str(fault_of(workspace))
    assert len(secret) == 1


def test_an_older_version_that_was_brought_back_is_refused(
    kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person]
) -> None:
    """O36: a rollback in Vault cannot give a revoked key its trust back."""
    envelope = signed(workspace)
    signing_keys.revoke(envelope.key_id, actor=people["admin"].actor)
    secret = kept_in_vault.secrets[path_of(workspace)]
    secret.append(secret[0])
    keyring.forget_all()
    assert "older version was brought back" in str(fault_of(workspace))
    assert verdict(workspace, envelope) == Verdict.INVALID


@pytest.mark.parametrize("document", [None, {}, [], "text", {"active": "a"}, {"active": "a", "keys": {}, "seal": ""}])
def test_a_malformed_document_is_refused(kept_in_vault: Vault, workspace: Workspace, document: Any) -> None:
    """O34."""
    envelope = signed(workspace)
    kept_in_vault.secrets[path_of(workspace)][-1].data = document
    keyring.forget_all()
    assert "malformed or lacks a field" in str(fault_of(workspace))
    assert verdict(workspace, envelope) == Verdict.INVALID


@pytest.mark.parametrize("missing", ["public", "private", "state", "created_at"])
def test_a_document_that_lacks_a_field_is_refused(kept_in_vault: Vault, workspace: Workspace, missing: str) -> None:
    """O34."""
    envelope = signed(workspace)
    del kept_in_vault.newest(path_of(workspace))["keys"][envelope.key_id][missing]
    keyring.forget_all()
    assert fault_of(workspace)
    assert verdict(workspace, envelope) == Verdict.INVALID


# changes that may or may not have arrived


def test_a_change_whose_confirmation_was_lost_is_found_out(
    kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person]
) -> None:
    """O35: Vault is asked, and has it."""
    first = signed(workspace).key_id
    kept_in_vault.cut = "after"
    done = signing_keys.rotate(actor=people["admin"].actor)
    assert kept_in_vault.newest(path_of(workspace))["active"] == done.active != first


def test_a_change_that_did_not_arrive_is_refused(
    kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """O35: 503, in the audit, and the old key goes on."""
    first = signed(workspace).key_id
    kept_in_vault.cut = "before"
    answer = as_person(people["admin"]).post("/v1/signing-keys/rotate")
    assert (answer.status_code, answer.json()["code"]) == (503, "result_not_confirmed")
    assert "did not confirm" in answer.json()["detail"]
    assert AuditEvent.objects.filter(action="key.rotate").values_list("outcome", "code").get() == (
        "failed",
        "result_not_confirmed",
    )
    assert signed(workspace).key_id == first


def test_while_vault_is_sealed_keys_can_be_neither_listed_nor_changed(
    kept_in_vault: Vault, workspace: Workspace, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    key_id = signed(workspace).key_id
    kept_in_vault.sealed = True
    admin = as_person(people["admin"])
    answers = [
        admin.get("/v1/signing-keys"),
        admin.post("/v1/signing-keys/rotate"),
        admin.post(f"/v1/signing-keys/{key_id}/revoke"),
    ]
    assert [answer.status_code for answer in answers] == [503] * 3
    assert all("unseal it" in answer.json()["detail"] for answer in answers)
    assert len(kept_in_vault.secrets[path_of(workspace)]) == 1
