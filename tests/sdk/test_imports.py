"""What the package offers is there, and nothing is loaded before it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
import recourse


def test_every_name_that_the_package_offers_is_there() -> None:
    missing = [name for name in recourse.__all__ if getattr(recourse, name, None) is None]
    assert not missing, f"in __all__, but neither in _HOMES nor an error: {missing}"
    offered = {name for names in recourse._HOMES.values() for name in names}
    assert offered <= set(recourse.__all__)
    assert not hasattr(recourse, "nothing_of_the_kind")


@pytest.mark.parametrize("code", ["import recourse", "from recourse import cli; cli.make_parser().format_help()"])
def test_help_and_the_package_itself_load_neither_http_nor_asyncio(code: str) -> None:
    """Help and completion answer while somebody types."""
    code += "; import sys; print(*{'httpx', 'asyncio', 'rich', 'shtab', 'recourse.calls'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
