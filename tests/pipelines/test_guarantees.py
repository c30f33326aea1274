"""What is said of guarantees, for every way in which a console can be set: nothing is promised that is not kept."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from config.environment import BASE_DIR
from pipelines import guarantees, help_topics, readiness, repeating
from pipelines.guarantees import AS_INSTALLED, Facts, Standing, statements
from pipelines.limits import Limits
from pipelines.readiness import PlaceFacts, State, checklist
from pipelines.repeating import ADDING, MERGING, Act, Seen, StageFacts, Verdict, judge

EVERY_CONSOLE = [
    Facts(broker, 60, days, keyring, closed, tables, run_retries, retries, triggers, ("PostgreSQL",), keys)
    for broker, days, keyring, closed, tables, run_retries, retries, triggers, keys in product(
        ("filesystem", "redis", "amqp"),
        (0, 1, 90),
        ("local", "vault"),
        ("", "There is no role."),
        (0, 100),
        ((), ("patient",)),
        ((), ("calm", "eager")),
        (0, 1, 5),
        ((), ("HTTP API",)),
    )
]
# what nobody keeps, in the words in which others promise it (N5)
TOO_MUCH = re.compile(
    r"exactly[ -]once|once and only once|only once|never (?:twice|repeated)|no duplicates|guaranteed delivery"
    r"|always succeed",
    re.I,
)
ACTS = st.builds(
    Act,
    st.sampled_from(["external_http", "tool_side_effect", "model_provider"]),
    st.sampled_from(["", "warehouse"]),
    st.sampled_from(["", "something", *sorted(MERGING), *sorted(ADDING)]),
    st.integers(1, 50),
    st.integers(0, 1),
)
SEEN = st.builds(
    Seen, st.integers(0, 20), st.integers(0, 20), st.floats(0, 5000), st.lists(ACTS, max_size=4).map(tuple)
)
STAGES = st.builds(
    StageFacts,
    st.text("abc", min_size=1, max_size=4),
    st.just("Handler"),
    st.sampled_from(["execute", "import"]),
    st.sampled_from(["none", "idempotent", "external"]),
    st.sampled_from(["none", "intent"]),
    st.sampled_from(["", "before", "after"]),
    st.integers(0, 3),
    st.sampled_from(["options", "policy calm"]),
    st.booleans(),
    SEEN,
)
PLACES = st.builds(
    PlaceFacts,
    st.lists(STAGES, min_size=1, max_size=8).map(tuple),
    st.builds(Limits, deadline_seconds=st.one_of(st.none(), st.integers(1, 1000))),
    st.booleans(),
    st.integers(0, 20),
    st.sampled_from(["", "patient"]),
    st.integers(0, 90),
)


def of(facts: Facts, key: str) -> guarantees.Statement:
    (found,) = [one for one in statements(facts) if one.key == key]
    return found


def test_no_console_promises_that_things_happen_exactly_once() -> None:
    """N5, over every console: the words stand in the one statement that says that it is not promised."""
    for facts in EVERY_CONSOLE:
        for one in statements(facts):
            if TOO_MUCH.search(f"{one.title} {one.text} {one.because}"):
                assert (one.key, one.standing) == ("exactly_once", Standing.NOT_PROMISED)
        assert of(facts, "exactly_once").text.startswith("Stages are handed out at least once")


def test_no_help_promises_it_either() -> None:
    for topic in help_topics.TOPICS:
        assert not TOO_MUCH.search(f"{topic.name} {topic.text}")


@given(PLACES)
def test_nor_does_a_checklist_or_a_verdict(place: PlaceFacts) -> None:
    told = [f"{line.title} {line.why} {line.to_do}" for line in checklist(place)]
    told += [f"{repeat.words} {' '.join(repeat.reasons)}" for _, repeat in readiness.repeats(place)]
    for text in told:
        assert not TOO_MUCH.search(text), text


def test_every_console_says_the_same_things_in_the_same_order_each_once() -> None:
    keys = {one.key for one in statements(AS_INSTALLED)}
    for facts in EVERY_CONSOLE:
        told = statements(facts)
        assert {one.key for one in told} == keys
        assert len(told) == len(keys)
        standings = [list(Standing).index(one.standing) for one in told]
        assert standings == sorted(standings)
        assert all(topic in help_topics.BY_KEY for one in told for topic in one.see)
        assert all(one.text.endswith(".") for one in told)


def test_what_is_off_is_said_to_be_off_and_by_what() -> None:
    """N1, N2, N12, N28: for each console, from its own facts."""
    for facts in EVERY_CONSOLE:
        retry = of(facts, "run_retry")
        assert retry.standing == (Standing.PROMISED if facts.run_retries else Standing.OFF)
        assert all(name in retry.because for name in facts.run_retries)
        store = of(facts, "store")
        assert store.standing == (Standing.PROMISED if facts.store_tables and not facts.store_closed else Standing.OFF)
        assert of(facts, "ticks").standing == (Standing.PROMISED if facts.triggers_on else Standing.OFF)
        assert ("Vault" in of(facts, "signed_checkpoints").text) == (facts.keyring == "vault")
        assert ("for good" in of(facts, "failures_are_recorded").text) == (facts.retention_days == 0)
        assert ("CELERY_BROKER_URL is empty" in of(facts, "hints").because) == (facts.broker == "filesystem")
        keys = of(facts, "provider_keys")
        assert keys.standing == Standing.NOT_PROMISED, "N11: never for the platform as a whole"


def test_the_variants_of_the_document_are_otherwise_than_a_console_as_installed() -> None:
    for other in guarantees.variants(AS_INSTALLED):
        assert other != AS_INSTALLED
        assert statements(other) != statements(AS_INSTALLED)


def test_the_document_has_them_as_they_are() -> None:
    """`python -m pipelines.guarantees` prints that part."""
    document = (BASE_DIR / "docs/explain/guarantees.md").read_text()
    assert guarantees.as_markdown() in document


# stages


@given(STAGES)
def test_what_acts_outside_is_never_called_safe(stage: StageFacts) -> None:
    """N23: whatever was seen of it."""
    verdict = judge(stage).verdict
    if stage.mode == "import":
        assert verdict == Verdict.AWAITS
    elif stage.effect_mode == "external":
        assert verdict == (Verdict.INTENT if stage.effect_protocol == "intent" else Verdict.ASKS)
    else:
        assert verdict in (Verdict.DECLARED, Verdict.SEEN, Verdict.DOUBTFUL)


@given(STAGES.filter(lambda one: one.mode == "execute" and one.effect_mode != "external"))
def test_a_definition_that_what_was_seen_contradicts_is_doubtful(stage: StageFacts) -> None:
    acts = stage.seen.acts
    against = bool(acts) if stage.effect_mode == "none" else any(one.adds for one in acts)
    assert (judge(stage).verdict == Verdict.DOUBTFUL) == against


@given(STAGES)
def test_seen_and_merging_is_said_only_of_what_was_seen_to_merge_alone(stage: StageFacts) -> None:
    """N11, N21: a handler that tells of its effects itself has said nothing about merging."""
    if judge(stage).verdict == Verdict.SEEN:
        assert stage.seen.acts
        assert all(one.connector and one.act in MERGING for one in stage.seen.acts)


@given(STAGES)
def test_every_reason_says_whether_it_was_declared_seen_or_is_not_known(stage: StageFacts) -> None:
    reasons = judge(stage).reasons
    assert all(one.startswith(("declared: ", "seen in ", "not known: ")) for one in reasons)
    assert len(reasons) >= 2, "what its definition says, and what was seen or not"


def test_each_verdict_has_words() -> None:
    assert set(repeating.WORDS) == set(Verdict)


# the checklist


def stage(**more: object) -> StageFacts:
    return replace(StageFacts("fetch", "Handler"), **more)  # type: ignore[arg-type]


def place(*stages: StageFacts, **more: object) -> PlaceFacts:
    made = PlaceFacts(stages or (stage(),), Limits(), False, 3, "", 0)
    return replace(made, **more)  # type: ignore[arg-type]


def state(of_place: PlaceFacts, key: str) -> State:
    (found,) = [one for one in checklist(of_place) if one.key == key]
    return found.state


def test_a_pipeline_that_never_ran_is_not_known_where_only_runs_would_tell() -> None:
    """N27: nothing is guessed."""
    bare = place(runs=0)
    told = {one.key: one.state for one in checklist(bare)}
    assert told == {
        "upserts": State.NOT_KNOWN,
        "checkpoints": State.NOT_KNOWN,
        "row_limits": State.NOT_KNOWN,
        "retries": State.NOT_MET,
        "effects": State.NOT_KNOWN,
        "limits": State.NOT_MET,
        "input_schema": State.NOT_MET,
        "traceback": State.MET,
    }


def test_writes_merge_only_where_every_one_that_was_told_does() -> None:
    """N12, N19, N23."""
    merged, added = Act("tool_side_effect", "db", "upsert", 3), Act("tool_side_effect", "db", "insert", 1)
    own = Act("external_http", "", "", 1)
    for acts, expected in (
        ((), State.NOT_KNOWN),
        ((merged,), State.MET),
        ((merged, added), State.NOT_MET),
        ((merged, own), State.NOT_KNOWN),
        ((own, added), State.NOT_MET),
    ):
        assert state(place(stage(seen=Seen(3, 0, 1.0, acts))), "upserts") == expected


def test_a_long_attempt_without_a_state_lacks_checkpoints_and_a_short_one_does_not() -> None:
    """N20: both sides of the limit."""
    limit = float(readiness.LONG_SECONDS)
    for seen, expected in (
        (Seen(3, 0, limit), State.NOT_MET),
        (Seen(3, 0, limit - 0.1), State.MET),
        (Seen(3, 1, limit), State.MET),
        (Seen(0, 0, 0.0), State.NOT_KNOWN),
    ):
        assert state(place(stage(seen=seen)), "checkpoints") == expected


def test_retries_are_met_by_every_stages_rule_or_by_a_policy_for_the_run() -> None:
    """N1: by what there is, not by what could be elsewhere."""
    patient = stage(retries=2, retry_source="options")
    assert state(place(patient), "retries") == State.MET
    assert state(place(patient, stage()), "retries") == State.NOT_MET
    assert state(place(patient, stage(mode="import")), "retries") == State.MET
    assert state(place(stage(), run_retry="patient"), "retries") == State.MET


def test_effects_are_met_where_the_mode_and_what_was_told_agree() -> None:
    acted = Seen(1, 0, 1.0, (Act("external_http", "crm", "PUT", 1),))
    assert state(place(stage(effect_mode="none", seen=acted)), "effects") == State.NOT_MET
    assert state(place(stage(effect_mode="external")), "effects") == State.NOT_MET
    assert state(place(stage(effect_mode="external", effect_protocol="intent")), "effects") == State.MET
    assert state(place(stage(seen=acted)), "effects") == State.MET
    assert state(place(stage()), "effects") == State.NOT_KNOWN


def test_time_is_bounded_by_a_deadline_or_by_a_time_out_of_every_stage() -> None:
    timed = stage(has_timeout=True)
    assert state(place(limits=Limits(deadline_seconds=60)), "limits") == State.MET
    assert state(place(timed), "limits") == State.MET
    assert state(place(timed, stage()), "limits") == State.NOT_MET


def test_rows_are_bounded_by_connectors_and_not_known_of_all_else() -> None:
    """N26."""
    by_adapter, own = Act("tool_side_effect", "db", "upsert", 1), Act("tool_side_effect", "", "", 1)
    assert state(place(stage(seen=Seen(1, 0, 1.0, (by_adapter,)))), "row_limits") == State.MET
    assert state(place(stage(seen=Seen(1, 0, 1.0, (by_adapter, own)))), "row_limits") == State.NOT_KNOWN
    assert state(place(), "row_limits") == State.NOT_KNOWN


@given(PLACES)
def test_every_line_says_why_and_what_is_not_met_says_what_to_do(of_place: PlaceFacts) -> None:
    told = checklist(of_place)
    assert [one.key for one in told] == [one.key for one in checklist(place())]
    for one in told:
        assert one.why.endswith("."), one.why
        assert one.see in help_topics.BY_KEY
        assert one.to_do or one.state == State.MET
