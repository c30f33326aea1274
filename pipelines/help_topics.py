"""What the help is about: a topic in a few sentences, with the screens that show it and the documents that say more.

The names are those that people look for who come from elsewhere (N29). Pure; statements and checklists name topics by
key. Documents lie in the repository beside the code, and the console does not serve them: their paths are told.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """`screens` are (what it is called, its address or that one's name); `documents` paths in the repository."""

    key: str
    name: str
    text: str
    screens: tuple[tuple[str, str], ...]
    documents: tuple[str, ...]


TOPICS = (
    Topic(
        "scheduling",
        "Scheduling Guarantees",
        "Every tick of a schedule has one row in the ledger, and one run at most or the reason why it has none. Stages"
        " are handed out at least once: what a handler does outside may be done again unless it is keyed, merged, or"
        " told as an effect.",
        (("Guarantees", "console:guarantees"), ("Triggers", "console:triggers")),
        ("docs/explain/guarantees.md", "docs/howto/schedules.md", "docs/howto/worker-safe-handlers.md"),
    ),
    Topic(
        "connectors",
        "Connectors Overview",
        "What adapters can do with each kind of outside system: read, insert, upsert, pass a provider's key on, bound"
        " the rows. Which connectors there are is in a file beside the workers.",
        (("Capability matrix", "console:connectors"),),
        ("docs/howto/connectors.md", "docs/reference/connectors.md"),
    ),
    Topic(
        "observability",
        "Observability",
        "Every attempt keeps its log lines, its error and its whole traceback on the page of its run, with events in"
        " their order. What moves is counted for collectors at /metrics.",
        (("Runs", "console:runs"), ("Dead letters", "console:dead-letters"), ("Metrics", "/metrics")),
        ("docs/howto/console.md", "docs/reference/metrics.md", "docs/howto/recover-a-failed-run.md"),
    ),
    Topic(
        "workspace",
        "Workspace",
        "Handlers keep keyed rows of their own there, beside their runs and apart from what the console itself keeps."
        " They outlive the run, also one that failed.",
        (("Workspace store", "console:store"),),
        ("docs/howto/workspace-store.md",),
    ),
    Topic(
        "constraints",
        "Constraints",
        "Connectors bound the rows of a write and of an attempt before anything is written; limits bound attempts,"
        " bytes and time of a run; policies bound how much goes at once and how fast.",
        (("Pipelines and their releases", "console:pipelines"), ("Capability matrix", "console:connectors")),
        ("docs/howto/connectors.md", "docs/howto/limits.md", "docs/howto/policies.md"),
    ),
    Topic(
        "api",
        "REST API",
        "Whatever people do on screens can be asked of /v1, by a person's token; applications create runs and read"
        " their own with a key. A scheduler elsewhere starts a run under a key of its own and reads how it ended.",
        (("API reference", "/v1/docs"),),
        ("docs/reference/api.md", "docs/howto/python-client.md", "docs/howto/command-line.md"),
    ),
    Topic(
        "mcp",
        "MCP",
        "The command recourse mcp serves this console to language models by the Model Context Protocol, as one person:"
        " they read what that person may read, and an act is a plan first.",
        (("Your tokens", "console:account"),),
        ("docs/howto/mcp.md", "docs/reference/cli.md"),
    ),
    Topic(
        "retries",
        "Retries and resuming",
        "A stage is tried again by its options or a policy; a run that failed only where a policy of kind run retry"
        " says so. What is given up on leaves a dead letter. A retry goes on at the failed stage.",
        (
            ("Dead letters", "console:dead-letters"),
            ("Policies, for administrators", "admin:pipelines_policy_changelist"),
        ),
        ("docs/howto/policies.md", "docs/howto/run-retries.md", "docs/howto/recover-a-failed-run.md"),
    ),
    Topic(
        "pipelines",
        "Pipelines and handlers",
        "What a handler should do so that doing it again does no harm: merge on a key, leave checkpoints, tell effects"
        " before they happen, say what its input must be.",
        (("Pipelines", "console:pipelines"),),
        ("docs/howto/pipelines-as-code.md", "docs/howto/write-a-handler.md", "docs/howto/worker-safe-handlers.md"),
    ),
    Topic(
        "signing",
        "Signatures",
        "Checkpoints and the ends of the audit are signed, and what they say is believed only while that holds.",
        (("Signing keys", "console:signing-keys"), ("Audit", "console:audit")),
        ("docs/howto/signing-keys.md", "docs/explain/checkpoints.md", "docs/explain/audit.md"),
    ),
)
BY_KEY = {one.key: one for one in TOPICS}
