"""Files and modules that hold pipelines: read, run once, and their stages made handlers.

A file is the code of its pipelines: its bytes are what the console keeps and what a worker compares with. What the file
imports from elsewhere is not looked at. A worker that runs other code than the release of a run says so in the
attempt's log, and runs it all the same: a deployment is never both at once.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from inspect import iscoroutinefunction
from pathlib import Path
from types import ModuleType
from typing import Any

from recourse.authoring.context import Context
from recourse.authoring.stages import MOST_SOURCE, Pipeline, Source, Stage, bare, is_slug
from recourse.context import StageContext
from recourse.errors import ConfigurationError
from recourse.handlers import Registry

OTHER_CODE = "this worker runs other code than the release of the run"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module, the pipelines that it holds in their order, and the text that it was made of."""

    module: ModuleType
    pipelines: tuple[Pipeline, ...]
    source: Source | None


def load(where: str, slug: str | None = None) -> Loaded:
    """Runs the file, or imports the module, and finds its pipelines: those that it names, else its `async def run`,
    whose slug is the file's name unless given. With pipelines of its own, `slug` chooses one of them.

    Raises ConfigurationError where there is no such file or module, or it is not what it should be; what the code
    itself raises goes on.
    """
    module, path = _module(where)
    found = {id(one): one for one in vars(module).values() if isinstance(one, Pipeline)}
    pipelines = tuple(found.values())
    slugs = [one.slug for one in pipelines]
    if twice := sorted({one for one in slugs if slugs.count(one) > 1}):
        raise ConfigurationError(f"{where}: two pipelines have the slug {twice[0]!r}")
    run = vars(module).get("run")
    if pipelines and slug is not None:
        pipelines = tuple(one for one in pipelines if one.slug == slug)
        if not pipelines:
            raise ConfigurationError(f"{where} has no pipeline {slug!r}; it has {', '.join(slugs)}")
    elif not pipelines and iscoroutinefunction(run) and run.__module__ == module.__name__:
        pipelines = (bare(run, slug or _slug_of(module, path)),)
    return Loaded(module, pipelines, _source(path) if pipelines else None)


def load_handlers(where: str, registry: Registry) -> str:
    """Makes what `[SLUG=]FILE_OR_MODULE` holds handlers of the registry: its pipelines' stages, beside what its code
    registers by itself. Returns the module's name. Loading the same again changes nothing.
    """
    slug, is_said, place = where.partition("=")
    if not is_said or not is_slug(slug):
        slug, place = "", where
    loaded = load(place, slug or None)
    own = any(registry.find(name).function.__module__ == loaded.module.__name__ for name in registry.names)
    named = any(isinstance(one, Pipeline) for one in vars(loaded.module).values())
    if slug or named or not own:  # beside handlers of its own, a `run` is just a function
        register(loaded.pipelines, loaded.source, registry)
    return loaded.module.__name__


def register(pipelines: Iterable[Pipeline], source: Source | None, registry: Registry) -> None:
    """Registers every stage as `slug.stage`. The same once more changes nothing; raises ConfigurationError for a name
    that another function has.
    """
    for pipeline in pipelines:
        for stage in pipeline.stages:
            name = f"{pipeline.slug}.{stage.name}"
            if name not in registry.names:
                registry.add(name, _handler(stage, source), recipients=stage.recipients)
                continue
            known = registry.find(name).function
            if getattr(known, "__wrapped__", None) is not stage.function:
                both = f"{known.__module__} and {stage.function.__module__}"
                raise ConfigurationError(f"two functions would be the handler {name!r}: of {both}")


def _handler(stage: Stage, source: Source | None) -> Any:
    """The stage's function as workers run it: on a `StageContext`."""
    digest = None if source is None else source.sha256

    @functools.wraps(stage.function)
    async def handle(raw: StageContext) -> Any:
        released = raw.job.source_digest
        if released is not None and digest is not None and released != digest:
            raw.log("warning", OTHER_CODE, released=released, running=digest, file=source.file if source else "")
        return await stage.function(Context(raw))

    return handle


def is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where


def _module(where: str) -> tuple[ModuleType, Path | None]:
    if is_file(where):
        path = Path(where)
        return _run(path), path
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            hint = f"; for a file say {where}.py" if Path(f"{where}.py").is_file() else ""
            raise ConfigurationError(f"there is no module {where!r}{hint}") from error
        raise
    file = getattr(module, "__file__", None)
    return module, Path(file) if file and file.endswith(".py") else None


def _run(path: Path) -> ModuleType:
    """The module of a file. The same bytes are run once in a process; changed ones are another module."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    place = str(path.resolve().parent)
    name = f"{path.stem}__{sha256(raw + place.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    if place not in sys.path:
        sys.path.append(place)  # what stands beside it may be imported, and hides nothing that is installed
    sys.modules[name] = module
    try:
        exec(compile(raw, str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SyntaxError) and error.filename == str(path):
            raise ConfigurationError(f"{path}, line {error.lineno}: {error.msg}") from error
        raise
    return module


def _source(path: Path | None) -> Source | None:
    if path is None:
        return None
    raw = path.read_bytes()
    if len(raw) > MOST_SOURCE:
        raise ConfigurationError(f"{path} has {len(raw)} bytes; the code of a pipeline has at most {MOST_SOURCE}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 at byte {error.start}") from error
    if "\x00" in text:
        raise ConfigurationError(f"{path} holds NUL, which no source does")
    return Source(path.name, text)


def _slug_of(module: ModuleType, path: Path | None) -> str:
    return path.stem if path is not None and path.stem != "__init__" else module.__name__.rpartition(".")[2]
