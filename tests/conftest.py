"""Settings of the whole suite: Programs are type-checked after every transform, examples are reproducible."""

from __future__ import annotations

import os

os.environ.setdefault("FUNCGRAD_CHECK", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["FUNCGRAD_CACHE_DIR"] = ""  # what is tested is compiled

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "funcgrad", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("funcgrad")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks at compiled code is of no use where checks of memory are in it."""
    if os.environ.get("FUNCGRAD_SANITIZE", "0") not in ("", "0"):
        for item in items:
            if item.get_closest_marker("plain_code"):
                item.add_marker(pytest.mark.skip(reason="checks of memory are in the code"))


@pytest.fixture
def unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long Programs stay as they were traced: equal steps do not become a loop."""
    from funcgrad.control import roll

    monkeypatch.setattr(roll, "EQUATIONS", 10**9)
