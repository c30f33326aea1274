"""Finds the runs of one page, newest first, from an index whatever the filter and however many runs there are.

Each filter alone is answered by an index that already has the list's order (created_at, id), a probe for each value.
Several together are left to the planner, which knows how common the values are. Words are a case of their own: rare
ones are gathered from the search index, common ones met soon enough on a walk down the list; see `_by_words`. Screens
search wider than the API: also idempotency keys and errors, whose words stand apart in the same index.
Limits: a word in more than `RARE` runs, none among the newest `WALK` visible ones, costs a sort of all of them.
"""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from pipelines import context
from pipelines.access import Actor
from pipelines.filters import BETWEEN_WORDS, RunFilter
from pipelines.models import Application, Environment, Pipeline
from pipelines.paging import Cut, Position
from pipelines.sql import execute, in_one, planned

GLANCE = 2_000  # newest runs that are looked through first: a common word fills the page there
RARE = 5_000  # hits that are gathered and sorted at once
WALK = 50_000  # newest runs that are looked through for a word that is neither


def newest(actor: Actor, wanted: RunFilter, cut: Cut) -> list[Position]:
    """Up to `cut.reach` positions (created_at, id) of runs that the actor may see, in the cut's direction."""
    found = places(actor, wanted)
    if found is None:
        return []
    search = _Search(actor, wanted, cut, found)
    if wanted.search:
        return _by_words(search)
    return search.run()


def ids_in_one(actor: Actor, wanted: RunFilter, most: int) -> tuple[int, str]:
    """How many runs the list has, counted up to `most` + 1, and their ids in its order as one `uuid[]` in text.

    For whoever hands them back to the database: a hundred thousand ids apart cost a second on their way.
    """
    found, cut = places(actor, wanted), Cut(size=most)
    if found is None:
        return 0, "{}"
    search = _Search(actor, wanted, cut, found)
    if wanted.search:
        positions = _by_words(search)
        return len(positions), in_one(run_id for _, run_id in positions)
    return search.in_one()


@dataclass(frozen=True, slots=True)
class Places:
    """The ids that a filter's names stand for; None where the filter names nothing."""

    applications: list[uuid.UUID] | None
    environments: list[uuid.UUID] | None
    pipelines: list[uuid.UUID] | None


def places(actor: Actor, wanted: RunFilter) -> Places | None:
    """None when a name stands for nothing that the actor may see: then no run matches."""
    applications = [actor.application_id] if actor.application_id else None
    environments = [actor.environment_id] if actor.environment_id else None
    if wanted.application:
        named = _named(Application, "name", actor, wanted.application)
        applications = [one for one in named if applications is None or one in applications]
    if wanted.environment:
        named = _named(Environment, "slug", actor, wanted.environment)
        environments = [one for one in named if environments is None or one in environments]
    pipelines = _named(Pipeline, "slug", actor, wanted.pipeline) if wanted.pipeline else None
    if [] in (applications, environments, pipelines):
        return None
    return Places(applications, environments, pipelines)


def _named(model: Any, field: str, actor: Actor, names: Sequence[str]) -> list[uuid.UUID]:
    rows = model.objects.filter(workspace_id=actor.workspace_id)
    found = list(rows.filter(**{f"{field}__in": names}).values_list("id", flat=True))
    ids = [one for one in (_as_id(name) for name in names) if one]
    return found + list(rows.filter(id__in=ids).exclude(id__in=found).values_list("id", flat=True)) if ids else found


def _as_id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


class _Search:
    """One page's search: the conditions over `r` (a run), and the statement that suits them."""

    def __init__(self, actor: Actor, wanted: RunFilter, cut: Cut, places: Places) -> None:
        self.actor, self.wanted, self.cut, self.places = actor, wanted, cut, places
        self.params: dict[str, Any] = {
            "workspace": actor.workspace_id,
            "limit": cut.reach,
            "applications": places.applications,
            "environments": places.environments,
            "pipelines": places.pipelines,
            "status": list(wanted.status),
            "sources": list(wanted.recovered_from),
            "parents": list(wanted.parent_id),
            "handlers": list(wanted.handler),
            "codes": list(wanted.error_code),
            "after": wanted.created_after,
            "before": wanted.created_before,
            "words": _anywhere(wanted.search) if wanted.wide else _words(wanted.search),
            "owners": _owners(actor, places),
        }
        if cut.position:
            self.params["at"], self.params["id"] = cut.position
        self.direction = "ASC" if cut.backwards else "DESC"

    @property
    def query(self) -> str:
        """The words as a tsquery; those of a wide search have been through the parser."""
        return "%(words)s::tsquery" if self.wanted.wide else "to_tsquery('simple', %(words)s)"

    @property
    def order(self) -> str:
        return f"created_at {self.direction}, id {self.direction}"

    def run(self) -> list[Position]:
        return [(at, run_id) for at, run_id in planned(self.statement, self.params)]

    def in_one(self) -> tuple[int, str]:
        ((count, ids),) = planned(
            f"SELECT count(*), coalesce(array_agg(id ORDER BY {self.order})::text, '{{}}')"
            f" FROM ({self.statement}) found",
            self.params,
        )
        return count, ids

    @property
    def statement(self) -> str:
        """(created_at, id) of each run of the page, in the list's order."""
        return self._by_stage() or self._by_value() or self._plain()

    def conditions(self, *, with_code: bool = True) -> str:
        """What every run of the list fulfils, apart from its words."""
        wanted = self.wanted
        every = (
            "r.workspace_id = %(workspace)s",
            self._among("r.application_id", "applications"),
            self._among("r.environment_id", "environments"),
            self._among("r.pipeline_id", "pipelines"),
            self._among("r.status", "status"),
            self._among("r.recovered_from_id", "sources"),
            self._among("r.parent_id", "parents"),
            wanted.handler
            and "EXISTS (SELECT FROM pipelines_stage h WHERE h.run_id = r.id AND h.handler = ANY(%(handlers)s))",
            with_code
            and wanted.error_code
            and "EXISTS (SELECT FROM pipelines_stage e WHERE e.run_id = r.id AND e.last_error_code = ANY(%(codes)s))",
            self.window("r.created_at", "r.id"),
        )
        return " AND ".join(text for text in every if text)

    def _among(self, column: str, name: str) -> str:
        values: Sequence[Any] = self.params[name] or ()
        if len(values) == 1:
            # one value as an equation: a list of one would cost the index its order
            self.params[f"only_{name}"] = values[0]
            return f"{column} = %(only_{name})s"
        return f"{column} = ANY(%({name})s)" if values else ""

    def window(self, at: str, run_id: str) -> str:
        """The stretch of time that is asked for, and where the last page ended."""
        parts = []
        if self.wanted.created_after:
            parts.append(f"{at} >= %(after)s")
        if self.wanted.created_before:
            parts.append(f"{at} < %(before)s")
        if self.cut.position:
            parts.append(f"({at}, {run_id}) {'>' if self.cut.backwards else '<'} (%(at)s, %(id)s)")
        return " AND ".join(parts)

    def _plain(self) -> str:
        return (
            f"SELECT r.created_at, r.id FROM pipelines_run r WHERE {self.conditions()}"
            f" ORDER BY r.created_at {self.direction}, r.id {self.direction} LIMIT %(limit)s"
        )

    def _by_value(self) -> str | None:
        """A filter over a column of the run: a probe of that column's own index for each value it may have."""
        wanted, places = self.wanted, self.places
        asked = [name for name in ("status", "recovered_from", "parent_id") if getattr(wanted, name)]
        asked += ["pipeline"] if places.pipelines else []
        if wanted.handler or wanted.error_code or len(asked) > 1:
            return None
        match asked:
            case ["status"]:
                values = f"{self._rungs()} v(app, env) CROSS JOIN unnest(%(status)s::text[]) w(one)"
                matches = "r.application_id = v.app AND r.environment_id = v.env AND r.status = w.one"
            case ["pipeline"]:
                values = (
                    "unnest(%(pipelines)s::uuid[]) w(one) CROSS JOIN (SELECT e.id FROM pipelines_environment e"
                    f" WHERE {self._environments()}) v(env)"
                )
                matches = "r.pipeline_id = w.one AND r.environment_id = v.env"
                if places.applications:
                    matches += " AND r.application_id = ANY(%(applications)s)"
            case ["recovered_from"]:
                values = "unnest(%(sources)s::uuid[]) w(one)"
                matches = f"r.recovered_from_id = w.one AND {self.conditions()}"
            case ["parent_id"]:
                values = "unnest(%(parents)s::uuid[]) w(one)"
                matches = f"r.parent_id = w.one AND {self.conditions()}"
            case _ if places.applications or places.environments:
                values, matches = (
                    f"{self._rungs()} v(app, env)",
                    "r.application_id = v.app AND r.environment_id = v.env",
                )
            case _:
                return None
        window = self.window("r.created_at", "r.id")
        return (
            f"SELECT found.created_at, found.id FROM {values} CROSS JOIN LATERAL ("
            f"SELECT r.created_at, r.id FROM pipelines_run r WHERE {matches}{' AND ' + window if window else ''}"
            f" ORDER BY r.created_at {self.direction}, r.id {self.direction} LIMIT %(limit)s) found"
            f" ORDER BY {self.order} LIMIT %(limit)s"
        )

    def _by_stage(self) -> str | None:
        """Handler or error code: the stages' index, which knows when their run was created.

        Errors are few, so they lead whatever else is asked; a handler leads alone.
        """
        wanted = self.wanted
        others = wanted.status or wanted.recovered_from or wanted.parent_id or self.places.pipelines
        if wanted.error_code:
            values, matches = "%(codes)s", "s.last_error_code = w.one AND s.last_error_code <> ''"
        elif wanted.handler and not others:
            values, matches = "%(handlers)s", "s.handler = w.one"
        else:
            return None
        window = self.window("s.run_created_at", "s.run_id")
        matches += f" AND {window}" if window else ""
        if others or (wanted.error_code and wanted.handler):
            # the fence keeps the index's order: the run of each stage is looked at in turn, until the page is full
            joined = (
                " CROSS JOIN LATERAL (SELECT FROM pipelines_run r WHERE r.id = s.run_id"
                f" AND {self.conditions(with_code=False)} OFFSET 0) fits"
            )
        else:
            joined = ""
        return (
            f"SELECT DISTINCT found.created_at, found.id FROM {self._rungs()} v(app, env)"
            f" CROSS JOIN unnest({values}::text[]) w(one) CROSS JOIN LATERAL ("
            f"SELECT DISTINCT s.run_created_at AS created_at, s.run_id AS id FROM pipelines_stage s{joined}"
            f" WHERE s.application_id = v.app AND s.environment_id = v.env AND {matches}"
            f" ORDER BY s.run_created_at {self.direction}, s.run_id {self.direction} LIMIT %(limit)s) found"
            f" ORDER BY {self.order} LIMIT %(limit)s"
        )

    def _rungs(self) -> str:
        """Every application and environment of the workspace that the filter leaves, as pairs."""
        some = " AND a.id = ANY(%(applications)s)" if self.places.applications else ""
        return (
            "(SELECT a.id, e.id FROM pipelines_application a CROSS JOIN pipelines_environment e"
            f" WHERE a.workspace_id = %(workspace)s{some} AND {self._environments()})"
        )

    def _environments(self) -> str:
        some = " AND e.id = ANY(%(environments)s)" if self.places.environments else ""
        return f"e.workspace_id = %(workspace)s{some}"


def _by_words(search: _Search) -> list[Position]:
    """Runs that hold the words.

    1. Glance at the newest runs: a common word fills the page from them.
    2. Gather at most `RARE` + 1 hits from the search index. No more than `RARE`: those are all, sort them.
    3. More: walk further down the list until the page is full.
    4. Not full after `WALK` runs: common once, but not lately. Gather all hits after all.
    """
    if not search.params["words"]:
        return []
    found, whole = _walk(search, GLANCE)
    if whole:
        return found
    hits, found = _gather(search, f"LIMIT {RARE + 1}")
    if hits <= RARE:
        return found
    found, whole = _walk(search, WALK)
    return found if whole else _gather(search, "")[1]


def _gather(search: _Search, limit: str) -> tuple[int, list[Position]]:
    # the owners' lexemes are written as they are, past the parser, which yields none like them
    with transaction.atomic():
        # an estimate for a prefix is a guess, and a wrong one would read the whole table
        execute("SET LOCAL enable_seqscan = off")
        execute("SET LOCAL jit = off")
        rows = planned(
            "WITH hit AS MATERIALIZED (SELECT w.run_id FROM pipelines_runsearch w"
            # a search of which the parser leaves nothing would be one for whatever is the owners'
            f" WHERE numnode({search.query}) > 0 AND w.words @@ (%(owners)s::tsquery && {search.query}) {limit}),"
            " found AS MATERIALIZED (SELECT r.created_at, r.id FROM hit JOIN pipelines_run r ON r.id = hit.run_id"
            f" WHERE {search.conditions()} ORDER BY r.created_at {search.direction}, r.id {search.direction}"
            " LIMIT %(limit)s)"
            " SELECT (SELECT count(*) FROM hit), found.created_at, found.id FROM (SELECT 1) one LEFT JOIN found ON true"
            f" ORDER BY {search.order}",
            search.params,
        )
    return rows[0][0], [(at, run_id) for _, at, run_id in rows if run_id is not None]


def _walk(search: _Search, reach: int) -> tuple[list[Position], bool]:
    """Hits among the next `reach` runs of the list, and whether they are all that the page needs."""
    recent = (
        f"SELECT r.created_at, r.id FROM pipelines_run r WHERE {search.conditions()}"
        f" ORDER BY r.created_at {search.direction}, r.id {search.direction} LIMIT {reach}"
    )
    found = planned(
        # the fence (OFFSET 0) keeps the planner from turning the walk into a join over all hits
        f"SELECT recent.created_at, recent.id FROM ({recent}) recent CROSS JOIN LATERAL ("
        "SELECT FROM pipelines_runsearch w WHERE w.run_id = recent.id"
        f" AND w.words @@ {search.query} OFFSET 0) held"
        f" ORDER BY {search.order} LIMIT %(limit)s",
        search.params,
    )
    whole = len(found) >= search.cut.reach
    if not whole:
        whole = planned(f"SELECT count(*) FROM ({recent}) recent", search.params)[0][0] < reach
    return [(at, run_id) for at, run_id in found], whole


_LEXEME = re.compile(r"'((?:[^']|'')*)'")  # of a tsquery as text
_SEPARATORS = str.maketrans(BETWEEN_WORDS, " " * len(BETWEEN_WORDS))  # as where the words are written


def _words(texts: Sequence[str]) -> str:
    """The search as a tsquery: every word of a text, as a beginning; any of the texts. Empty: no words."""
    return " | ".join(f"({' & '.join(_word(word) for word in words)})" for words in _split(texts) if words)


def _anywhere(texts: Sequence[str]) -> str:
    """The same, where a word of the idempotency key or of an error does as well: as those stand in the index, apart.

    The parser has read each word, since it would drop what sets them apart; a word that it splits holds in any order.
    What it knows nothing in, like "²", it drops there as where words are written. Empty: it left no words.
    """
    split = [words for words in _split(texts) if words]
    asked = [_word(word) for words in split for word in words]
    parsed = iter(planned("SELECT to_tsquery('simple', w)::text FROM unnest(%s::text[]) w", [asked]) if asked else ())
    read = [[text for _, (text,) in zip(words, parsed, strict=False) if text] for words in split]
    told = [[f"({text} | {_apart(text)})" for text in texts] for texts in read]
    return " | ".join(f"({' & '.join(words)})" for words in told if words)


def _apart(parsed: str) -> str:
    return _LEXEME.sub(rf"'{context.APART}\1'", parsed.replace("<->", "&"))


def _split(texts: Sequence[str]) -> list[list[str]]:
    return [[word for word in text.translate(_SEPARATORS).split() if any(map(str.isalnum, word))] for text in texts]


def _owners(actor: Actor, places: Places) -> str:
    """As a tsquery: whose runs are looked for, as closely as the search index knows."""
    if places.applications and places.environments:
        pairs = [(one, rung) for one in places.applications for rung in places.environments]
        return " | ".join(f"'{context.owner_words(actor.workspace_id, *pair)[1]}'" for pair in pairs)
    return f"'{context.owner_words(actor.workspace_id, actor.workspace_id, actor.workspace_id)[0]}'"


def _word(word: str) -> str:
    quoted = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{quoted}':*"
