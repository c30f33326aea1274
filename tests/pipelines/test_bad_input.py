"""What is wrong in a request is refused by name, with a typed 4xx, and changes nothing. Never a 500, never HTML.

The table of fields and wrong values is generated from the shapes themselves: a field added to a shape is tested.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.api import serializers, shapes, worker_store
from pipelines.api.bodies import DEEPEST, MIB
from pipelines.api.shapes import Shape
from pipelines.models import Run, WorkerSession
from tests.cast import Api, Worker

STAGE = {
    "stageName": "a",
    "stageHandlerName": "Handler",
    "input": "{}",
    "description": "d",
    "dependsOn": [],
    "runNextIfFailed": False,
    "mode": "execute",
    "effectMode": "none",
    "effectProtocol": "none",
    "approval": {
        "when": "after",
        "approverRole": "admin",
        "count": 2,
        "expiresInSeconds": 60,
        "requirePerson": True,
    },
    "options": {
        "maxRetries": 3,
        "retryInterval": 10,
        "retryOnErrorCodes": ["TIMEOUT"],
        "backoff": "exponential",
        "maxRetryInterval": 120,
        "jitter": True,
        "timeOut": 60,
        "maxRecoveries": 3,
        "maxOutputBytes": 1024,
    },
    "recipients": [{"organisation": "o", "service": "s", "billing": "b", "retention": "r"}],
}
PAIR = {"key": "k", "value": "v"}
RUN = {
    "name": "n",
    "stages": [STAGE],
    "environment": "development",
    "contextItems": [{**PAIR, "isSensitive": False}],
    "keywords": [PAIR],
    "traceId": "t",
    "traceparent": "p",
    "tracestate": "s",
    "deadlineSeconds": 60,
    "limits": {
        "concurrency": 2,
        "attemptsPerStage": 3,
        "totalAttempts": 9,
        "outputBytesPerStage": 2048,
        "totalOutputBytes": 1_000_000,
        "deadlineSeconds": 60,
        "revisions": 5,
    },
}
LINE = {"at": "2026-01-01T00:00:00Z", "level": "info", "message": "m", "fields": {"n": 1}}
ID = "5f0c7f4e-0d5e-4a53-9d0c-0a8f0a5d2f10"  # the same in every process, or a parallel run collects different tests
EFFECT = {
    "class": "external_http",
    "stepId": "charge",
    "idempotencyKey": "k",
    "state": "committed",
    "externalRef": "r",
    "requestHash": "h",
    "detail": {"n": 1},
}
CHILD = {
    "executionId": ID,
    "key": "k",
    "name": "n",
    "stages": [STAGE],
    "environment": "development",
    "onParentEnd": "cancel",
    "follow": "fork",
}
SIDE_EFFECT = {
    "class": "external_http",
    "stepId": "charge",
    "idempotencyKey": "k",
    "committed": True,
    "externalRef": "r",
    "requestHash": "h",
}
LEFT = {
    "state": {"page": 1},
    "recoveryPosture": {"sideEffects": [SIDE_EFFECT], "committedSideEffects": [SIDE_EFFECT]},
}
RESULT = {
    "executionId": ID,
    "attempt": 1,
    "requestDigest": "d",
    "status": "succeeded",
    "output": {"any": ["thing"]},
    "errorCode": "C",
    "errorMessage": "m",
    "traceback": "t",
    "retryable": True,
    "contextItems": [{**PAIR, "isSensitive": False}],
    "logs": [LINE],
    "usage": {"tokens": 1},
    "effects": [EFFECT],
    "checkpoint": LEFT,
}
TERMINATION = {
    "reason": "cancelled",
    "signals": [{"signal": "SIGTERM", "afterSeconds": 1.5, "processes": 2}],
    "exitCode": 1,
    "signal": "SIGKILL",
    "durationSeconds": 2,
    "graceSeconds": 10,
    "cpuSeconds": 0.5,
    "maxRssBytes": 4096,
    "processesSeen": 3,
    "left": [{"pid": 7, "command": "sleep 9", "why": "it did not end"}],
    "leftCount": 1,
    "complete": False,
    "platform": "linux",
}
REGISTRATION = {
    "workerName": "w",
    "supportedHandlers": ["H"],
    "instanceId": "i",
    "workerVersion": "v",
    "sdkVersion": "s",
    "hostName": "h",
    "pid": 1,
    "metadata": {},
}
# shape → a request with every field it has, and where it is sent (none: the shape is only tested by itself)
REQUESTS: dict[type[Shape], tuple[dict[str, Any], str | None]] = {
    serializers.IdempotentRunIntent: ({**RUN, "idempotencyKey": "k"}, "/pipelines/idempotent"),
    serializers.RunIntent: (RUN, "/pipelines"),
    serializers.Lookup: ({"idempotencyKey": "k"}, "/pipelines/by-idempotency-key"),
    serializers.Registration: (REGISTRATION, "/workers/bootstrap"),
    serializers.Pull: ({"handlers": ["Handler"], "maxJobs": 1, "waitSeconds": 0, "acquire": True}, "/jobs/pull"),
    serializers.Renewal: ({"leases": [{"stageId": ID, "executionId": ID}]}, "/leases/renew"),
    serializers.Acknowledgement: ({"deliveryId": ID}, "/jobs/ack"),
    serializers.Nothing: ({}, "/workers/heartbeat"),
    serializers.GateAnswer: ({"approved": False, "rejectionReason": "r"}, None),
    serializers.Reason: ({"reason": "r"}, None),
    serializers.OfAttempt: ({"executionId": ID}, None),
    serializers.Release: ({"executionId": ID, "checkpoint": LEFT}, None),
    serializers.Leaving: ({"executionId": ID, **LEFT}, None),
    serializers.EffectsTold: ({"executionId": ID, "effects": [EFFECT]}, None),
    serializers.Terminated: ({"executionId": ID, "termination": TERMINATION}, None),
    serializers.StageResult: (RESULT, None),
    serializers.ChildIntent: (CHILD, None),
    serializers.ChildrenLookedAt: ({"executionId": ID, "runs": [ID]}, None),
    serializers.OneOfManyResults: ({**RESULT, "stageId": ID}, None),
    serializers.Progress: ({"executionId": ID, "percent": 1, "message": "m"}, None),
    serializers.LogLines: ({"executionId": ID, "lines": [LINE]}, None),
    worker_store.OfTable: ({"executionId": ID, "table": "t"}, None),
    worker_store.TableDeclared: ({"executionId": ID, "table": "t", "key": ["k"]}, None),
    worker_store.RowsGiven: ({"executionId": ID, "table": "t", "rows": [{"k": 1}], "key": ["k"]}, None),
    worker_store.RowsWanted: (
        {"executionId": ID, "table": "t", "where": {"k": 1}, "after": 0, "limit": 1},
        None,
    ),
    worker_store.RowsUnwanted: ({"executionId": ID, "table": "t", "where": {"k": 1}, "everything": False}, None),
}
# what cannot stand beside the rest of an example, or names what must be there, has tests of its own
OF_MANAGED = {"pipeline", "input", "baseline"}
LEFT_OUT: dict[type[Shape], set[str]] = {
    serializers.RunIntent: OF_MANAGED,
    serializers.IdempotentRunIntent: OF_MANAGED,
    serializers.Registration: {"recipients"},
    serializers.StageResult: {"awaitsRuns"},
    serializers.OneOfManyResults: {"awaitsRuns"},
    serializers.ChildIntent: {"pipeline", "input"},
}
LATE = {shape: {shape.wire_name(name) for name in shape.later} for shape in REQUESTS}
TOO_LONG = "x" * 5_000_000
WRONG: dict[type, list[Any]] = {
    shapes.Text: [1, True, [], {}, "\u0000", "\ud800", TOO_LONG],
    shapes.Whole: ["1", 1.0, 1.5, True, [], {}, -1, 10**30],
    shapes.Number: ["1", True, [], {}, -1, 10**30],
    shapes.Flag: ["true", "false", "", 0, 1, [], {}],
    shapes.OneOf: ["", "Fixed", "no such word", 1, True, [], {}],
    shapes.Identifier: ["", "1", 1, True, [], {}, ID[:-1], f"{{{ID}}}", ID.replace("-", "")],
    shapes.Moment: ["", "yesterday", "2026-01-01", "2026-01-01T00:00:00", 1, True, "0001-01-01T00:00:00Z", [], {}],
    shapes.JsonObject: [1, "{}", [], True, {"a": "\u0000"}, {"\u0000": 1}, {"a": ["\ud800"]}, {"a": TOO_LONG}],
    shapes.SmallJson: [{"a": "\u0000"}, ["\ud800"], TOO_LONG],
    shapes.ListOf: [1, "a", {}, True, [None]],
    worker_store.TableName: [1, True, [], {}, "", "a b", "1st", "\u0000", "x" * 101],
    worker_store.KeyColumns: [1, "k", {}, True, [], [None], [""], ["k", "k"], ["x" * 101], ["\u0000"], [*"abcdefghi"]],
}


def fields_of(
    shape: type[Shape], example: dict[str, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, Any, Any]]:
    """(path, field, whether it is required) of every field in the shape, nested ones included."""
    for name, field in shape._declared_fields.items():
        wire = shape.wire_name(name)
        if wire in LEFT_OUT.get(shape, ()):
            continue
        assert wire in example, f"{shape.__name__}.{wire} has no example"
        here = (*path, wire)
        yield here, field, field.required
        inner, below = (field.child, (*here, 0)) if isinstance(field, shapes.ListOf) else (field, here)
        value = example[wire]
        if isinstance(inner, Shape):
            nested = value[0] if isinstance(field, shapes.ListOf) else value
            for deeper, deep_field, _ in fields_of(type(inner), nested, below):
                yield deeper, deep_field, deep_field.required


def wrong_values(field: Any) -> list[Any]:
    if isinstance(field, Shape):
        return [1, "a", [], True, {"unknown": 1}]
    return WRONG.get(type(field), [])


def written(path: tuple[Any, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def changed(example: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the example with another value at the path; `...` takes the field out."""
    head, *rest = path
    copy = list(example) if isinstance(example, list) else dict(example)
    if rest:
        copy[head] = changed(copy[head], tuple(rest), value)
    elif value is ...:
        del copy[head]
    else:
        copy[head] = value
    return copy


TABLE = [
    pytest.param(shape, path, field, required, id=f"{shape.__name__}-{written(path)}")
    for shape, (example, _) in REQUESTS.items()
    for path, field, required in fields_of(shape, example)
]


def names_only(problems: Any, path: str) -> bool:
    """Whether every message is about this field or what is in it."""
    return bool(problems) and all(name == path or name.startswith((f"{path}.", f"{path}[")) for name in problems)


@pytest.mark.parametrize("shape", REQUESTS, ids=lambda shape: shape.__name__)
def test_the_examples_themselves_are_good(shape: type[Shape]) -> None:
    """Else the tables below would prove nothing."""
    assert type(shape.check(REQUESTS[shape][0])) is dict


@pytest.mark.parametrize(("shape", "path", "field", "required"), TABLE)
def test_every_wrong_value_is_refused_by_the_path_of_its_field(
    shape: type[Shape], path: tuple[Any, ...], field: Any, required: bool
) -> None:
    """P11–P16, P37, F135: nothing is coerced; also null and leaving out, where the field is required."""
    example, _ = REQUESTS[shape]
    values = [*wrong_values(field), *([None, ...] if required else [])]
    for value in values:
        wrong = shape.check(changed(example, path, value))
        assert type(wrong) is shapes.Wrong, f"{value!r:.80} was taken"
        assert names_only(shapes.by_path(wrong), written(path)), f"{value!r:.80}: {shapes.by_path(wrong)}"


@pytest.mark.parametrize(("shape", "path", "field", "required"), [row for row in TABLE if not row.values[3]])
def test_an_optional_field_may_be_null_or_left_out_which_means_the_same(
    shape: type[Shape], path: tuple[Any, ...], field: Any, required: bool
) -> None:
    example, _ = REQUESTS[shape]
    null, left_out = (shape.check(changed(example, path, value)) for value in (None, ...))
    assert getattr(null, "problems", null) == getattr(left_out, "problems", left_out)


@pytest.mark.parametrize("shape", REQUESTS, ids=lambda shape: shape.__name__)
def test_unknown_and_later_fields_are_refused_by_path_at_every_depth(shape: type[Shape]) -> None:
    """Contract §2."""
    example, _ = REQUESTS[shape]
    objects = [()] + [
        (*path, 0) if isinstance(field, shapes.ListOf) else path
        for path, field, _ in fields_of(shape, example)
        if isinstance(field.child if isinstance(field, shapes.ListOf) else field, Shape)
    ]
    for path in objects:
        for name in ("foo", "", "\ud800", "x" * 1000, *LATE[shape]):
            wrong = shape.check(changed(example, (*path, name), 1))
            assert type(wrong) is shapes.Wrong
            if name == "foo":
                assert list(shapes.by_path(wrong)) == [written((*path, name))]


@pytest.mark.parametrize(
    ("shape", "path", "route"),
    [
        pytest.param(shape, path, route, id=f"{route}-{written(path)}")
        for shape, (example, route) in REQUESTS.items()
        if route
        for path, _, _ in fields_of(shape, example)
    ],
)
def test_the_routes_answer_a_typed_400_and_write_nothing(
    shape: type[Shape], path: tuple[Any, ...], route: str, worker: Worker
) -> None:
    """RFC 9457 bodies with the field's path; the same through every route as in the shapes alone."""
    example, _ = REQUESTS[shape]
    for value in (["nonsense"], {"a": {}}, "\u0000" if path[-1] != "approved" else 2):
        sent = changed(example, path, value)
        if type(shape.check(sent)) is dict:
            continue
        answer = worker.post(route, sent)
        assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
        body = answer.json()
        assert set(body) - {"keyUsed"} == {"type", "title", "status", "detail", "code", "errors"}
        assert (body["status"], body["code"]) == (400, "validation_error")
        assert names_only(body["errors"], written(path))
    assert not Run.objects.exists()
    assert WorkerSession.objects.count() == 1


LIMITS = [
    ("name", 255, "x"),
    ("stages.0.stageName", 255, "x"),
    ("stages.0.stageHandlerName", 300, "x"),
    ("stages.0.input", 256 * 1024, "x"),
    ("idempotencyKey", 200, "x"),
]


@pytest.mark.parametrize(("path", "most", "filler"), LIMITS)
def test_limits_hold_on_both_sides(path: str, most: int, filler: str, api: Api) -> None:
    """Contract §2: name and stage name 255, handler 300, input 256 KiB, key 200 characters."""
    keys = tuple(int(part) if part.isdigit() else part for part in path.split("."))
    example = {"idempotencyKey": "k", "name": "n", "stages": [{"stageName": "a", "stageHandlerName": "H", "input": ""}]}
    assert api.post("/pipelines/idempotent", changed(example, keys, filler * (most + 1))).status_code == 400
    assert api.post("/pipelines/idempotent", changed(example, keys, filler * most)).status_code == 201


def test_an_input_is_measured_in_bytes_of_utf_8(api: Api) -> None:
    example = {"idempotencyKey": "k", "name": "n", "stages": [{"stageName": "a", "stageHandlerName": "H"}]}
    most = 256 * 1024
    for text, status in (("ü" * (most // 2) + "x", 400), ("ü" * (most // 2), 201)):
        assert api.post("/pipelines/idempotent", changed(example, ("stages", 0, "input"), text)).status_code == status


@pytest.mark.parametrize(("count", "status"), [(0, 400), (1, 201), (100, 201), (101, 400)])
def test_a_run_has_one_to_a_hundred_stages(count: int, status: int, api: Api) -> None:
    """P13, contract §2."""
    stages = [{"stageName": f"s{number}", "stageHandlerName": "H"} for number in range(count)]
    body = {"idempotencyKey": "k", "name": "n", "stages": stages}
    assert api.post("/pipelines/idempotent", body).status_code == status


@pytest.mark.parametrize("key", ["", " ", "\t\n", "a\nb", "a\u0000b", "a\u007fb", "a\u0085b", None, 1, ["k"]])
def test_a_blank_key_or_one_with_control_characters_is_an_error(key: Any, api: Api) -> None:
    """P11, model §3.6."""
    body = {"idempotencyKey": key, "name": "n", "stages": [{"stageName": "a", "stageHandlerName": "H"}]}
    for route in ("/pipelines/idempotent", "/pipelines/by-idempotency-key"):
        sent = body if route.endswith("idempotent") else {"idempotencyKey": key}
        answer = api.post(route, sent)
        assert (answer.status_code, list(answer.json()["errors"])) == (400, ["idempotencyKey"])
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("stages", "path"),
    [
        ([("a", None), ("a", None)], "stages[1].stageName"),
        ([("a", None), ("b", ["c"])], "stages[1].dependsOn"),
        ([("a", None), ("b", ["b"])], "stages[1].dependsOn"),
        ([("a", None), ("b", ["a", "a"])], "stages[1].dependsOn"),
        ([("a", ["c"]), ("b", ["a"]), ("c", ["b"])], "stages[2].dependsOn"),
    ],
)
def test_stages_that_cannot_run_are_refused_by_path(stages: list[Any], path: str, api: Api) -> None:
    """Two of one name, an unknown dependency, itself, one twice, a circle."""
    sent = [{"stageName": name, "stageHandlerName": "H", "dependsOn": needed} for name, needed in stages]
    answer = api.post("/pipelines/idempotent", {"idempotencyKey": "k", "name": "n", "stages": sent})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [path])
    assert not Run.objects.exists()


RAW = {
    "not JSON": b"{",
    "not an object": b"[]",
    "a bare word": b"nonsense",
    "a string": b'"text"',
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"reason": "r"}',
    "NaN": b'{"reason": NaN}',
    "Infinity": b'{"reason": -Infinity}',
    "a number beyond all": b'{"reason": 1e999}',
    "a number of 5,000 digits": b'{"reason": ' + b"9" * 5_000 + b"}",
    "a control character": b'{"reason": "\x01"}',
    "a raw NUL": b'{"reason": "a\x00b"}',
    "an escaped NUL": b'{"reason": "\\u0000"}',
    "half a surrogate pair": b'{"reason": "\\ud83d"}',
    "deep lists": b'{"reason": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    "very deep lists": b"[" * 200_000,
    "very deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "trailing text": b"{} {}",
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
@pytest.mark.parametrize("route", ["/workers/bootstrap", "/pipelines/idempotent", "/results", "/jobs/pull"])
def test_what_is_no_good_json_is_a_typed_400(raw: bytes, route: str, worker: Worker) -> None:
    answer = worker.post(route, raw)
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert answer.json()["code"] == "validation_error"


def test_the_depth_limit_holds_on_both_sides(worker: Worker, start_run: Any) -> None:
    start_run()
    job = worker.take()

    def nested(levels: int) -> Any:
        return json.loads("[" * levels + "]" * levels)

    assert worker.report(job, output=nested(DEEPEST)).status_code == 400
    assert worker.report(job, output=nested(DEEPEST - 1)).status_code == 202


def test_duplicate_names_are_read_like_every_json_reader_does(api: Api, start_run: Any) -> None:
    run = start_run()
    assert api.post(f"/pipelines/{run.id}/cancel", b'{"reason": "a", "reason": "b"}').status_code == 200


@pytest.mark.parametrize(("route", "most"), [("/pipelines/idempotent", MIB), ("/results", 16 * MIB)])
def test_a_body_that_is_too_large_is_413(route: str, most: int, worker: Worker) -> None:
    """Contract §2: 1 MiB, 16 MiB for results; at the limit exactly it is read, and found wanting otherwise."""
    for size, status in ((most + 1, 413), (most, 400)):
        answer = worker.post(route, b" " * size)
        assert answer.status_code == status
        assert answer["Content-Type"] == "application/problem+json"
    assert not Run.objects.exists()


def test_a_body_of_another_media_type_is_415(api: Api) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
        answer = api._client.post("/pipelines/idempotent", b"{}", content_type=content_type, headers=api.headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported")
    accepted = api._client.post(
        "/pipelines/by-idempotency-key",
        b'{"idempotencyKey": "k"}',
        content_type="Application/JSON; charset=UTF-8",
        headers=api.headers,
    )
    assert accepted.status_code == 404


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "image/*"])
def test_an_answer_in_another_media_type_is_406(accept: str, api: Api) -> None:
    answer = api.get("/pipelines/1", Accept=accept)
    assert (answer.status_code, answer.json()["code"]) == (406, "unsupported")


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html, application/json;q=0.5", "application/*"])
def test_an_answer_in_json_suits_all_who_take_it(accept: str, api: Api) -> None:
    assert api.get(f"/pipelines/{uuid.uuid4()}", Accept=accept).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("get", "/pipelines/idempotent/cancel", "POST"),
        ("put", "/pipelines", "POST"),
        ("delete", f"/pipelines/{ID}", "GET"),
        ("options", "/jobs/pull", "POST"),
        ("head", "/results", "POST"),
        ("trace", "/workers/bootstrap", "POST"),
    ],
)
def test_another_method_is_405_and_says_which_there_are(method: str, path: str, allowed: str, api: Api) -> None:
    answer = getattr(api._client, method)(path, headers=api.headers)
    assert (answer.status_code, answer["Allow"]) == (405, allowed)
    assert answer["Content-Type"] == "application/problem+json"


def test_results_items_are_refused_one_by_one_whatever_they_are(worker: Worker) -> None:
    items = [None, 1, "text", [], {}, {"stageId": ID}, {**RESULT, "stageId": ID, "effects": {}}, {"stageId": 7}]
    answer = worker.post("/results", {"results": items})
    assert answer.status_code == 202
    told = answer.json()["results"]
    assert [(got["accepted"], got["code"]) for got in told] == [(False, "validation_error")] * len(items)
    assert list(told[6]["errors"]) == ["effects"]
    for results in ([], [{}] * 201, {}, "text"):
        assert worker.post("/results", {"results": results}).status_code == 400


def test_a_text_of_any_length_that_is_allowed_can_be_searched(api: Api, worker: Worker) -> None:
    """The search index of the database takes one MiB at most; nothing a caller may send makes it refuse."""
    words = " ".join(f"ж{number}" for number in range(1_700))[:10_000]
    items = [{"key": f"k{number}", "value": words[:9_000]} for number in range(50)]
    body = {"idempotencyKey": "k", "name": "n", "stages": [{"stageName": "a", "stageHandlerName": "Handler"}]}
    assert api.post("/pipelines/idempotent", {**body, "contextItems": items}).status_code == 201
    job = worker.take()
    more = [{"key": f"m{number}", "value": words} for number in range(40)]
    assert worker.report(job, contextItems=more).status_code == 202


def test_a_fault_of_ours_is_logged_and_told_in_the_api_s_own_words(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last resort: a 500 is a problem document too, and gives nothing of the inside away."""

    def broken(*_: Any) -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr("pipelines.api.application.find_by_key", broken)
    api._client.raise_request_exception = False
    answer = api.post("/pipelines/by-idempotency-key", {"idempotencyKey": "k"})
    assert (answer.status_code, answer["Content-Type"]) == (500, "application/problem+json")
    assert answer.json()["code"] == "internal_error"
    assert b"inside" not in answer.content


def test_people_get_pages_and_programs_get_problems(api: Api) -> None:
    for path, kind in (("/nope", "application/problem+json"), ("/console/nope", "text/html; charset=utf-8")):
        answer = api.get(path)
        assert (answer.status_code, answer["Content-Type"]) == (404, kind)
