"""Whether a release sends to others, or on other terms, than what is in force: what another person must review (R41).

Pure. A change is {stage, what, before, after}: `what` is one of a recipient's four fields, `added`, `removed` or
`order`; before and after are words, blank where there is nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.recipients import FIELDS, Recipient, in_words

Change = dict[str, str]
Definition = Mapping[str, Any]


def changes(before: Definition | None, after: Definition) -> list[Change]:
    """What is otherwise in the second definition, in its stages' order; of a pipeline's first release nothing.

    A stage that is left out sends to nobody any more. One that names nobody by now may go to anyone: its recipients are
    `removed`.
    """
    if before is None:
        return []
    old = {stage["name"]: stage for stage in before["stages"]}
    return [
        change
        for stage in after["stages"]
        for change in _of_stage(stage["name"], _recipients(old.get(stage["name"], {})), _recipients(stage))
    ]


def sentence(change: Mapping[str, str]) -> str:
    """A change for people."""
    stage, what, before, after = (change[name] for name in ("stage", "what", "before", "after"))
    if what == "added":
        return f"{stage}: may send to {after} too"
    if what == "removed":
        return f"{stage}: {before} is no longer named"
    if what == "order":
        return f"{stage}: the order is {after}, no longer {before}"
    return f"{stage}: another {what}: {after} instead of {before}"


def _of_stage(name: str, before: Sequence[Recipient], after: Sequence[Recipient]) -> list[Change]:
    if before == after:
        return []
    gone = [one for one in before if one not in after]
    new = [one for one in after if one not in before]
    if not gone and not new:
        return [_change(name, "order", _listed(before), _listed(after))]
    found = []
    # who stands where somebody else stood differs from them in some fields; the rest was added or removed
    for position in range(max(len(gone), len(new))):
        was = gone[position] if position < len(gone) else None
        becomes = new[position] if position < len(new) else None
        if was is not None and becomes is not None:
            fields = [field for field in FIELDS if was[field] != becomes[field]]
            found += [_change(name, field, in_words(was), in_words(becomes)) for field in fields]
        elif becomes is not None:
            found.append(_change(name, "added", "", in_words(becomes)))
        elif was is not None:
            found.append(_change(name, "removed", in_words(was), ""))
    staying = [one for one in before if one in after]
    if staying != [one for one in after if one in before]:
        found.append(_change(name, "order", _listed(before), _listed(after)))
    return found


def _recipients(stage: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{field: one.get(field) or "" for field in FIELDS} for one in stage.get("recipients") or ()]


def _listed(recipients: Sequence[Recipient]) -> str:
    return ", then ".join(in_words(one) for one in recipients)


def _change(stage: str, what: str, before: str, after: str) -> Change:
    return {"stage": stage, "what": what, "before": before, "after": after}
