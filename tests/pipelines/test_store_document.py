"""docs/howto/workspace-store.md: what it shows runs, and what it says of settings and refusals is so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from recourse import Registry

from config.environment import BASE_DIR
from pipelines import store_role
from pipelines.executor import Executor
from pipelines.models import Run
from tests.kept import assert_counted, kept
from tests.pipelines.engine import output, status
from tests.pipelines.test_executor import drain, impatient, make, registry  # noqa: F401

HOWTO = (BASE_DIR / "docs/howto/workspace-store.md").read_text()
StartRun = Callable[..., Run]


@pytest.mark.django_db(transaction=True)
def test_the_handler_of_the_document_skips_what_is_done(
    make: Callable[..., Executor],  # noqa: F811
    registry: Registry,  # noqa: F811
    start_run: StartRun,
) -> None:
    """N18, N20: run twice, it processes five batches and then none; each row is there once."""
    (code,) = re.findall(r"```python\n(.*?)```", HOWTO, flags=re.S)
    found: dict[str, object] = {"handler": registry.handler}
    exec(code.replace("from recourse import StageContext, handler\n", "from recourse import StageContext\n"), found)
    for processed in (5, 0):
        run = start_run({"name": "copy", "handler": "sync.copy"})
        drain(make())
        assert status(run) == "completed"
        assert json.loads(output(run, "copy") or "") == {"processed": processed}
    assert (len(kept("invoices")), len(kept("sync_progress"))) == (15, 5)
    assert_counted()


def test_what_opens_the_store_is_told_as_the_check_tells_it() -> None:
    assert store_role.TO_RUN.format(user="console") in HOWTO
    assert "W021" in HOWTO
