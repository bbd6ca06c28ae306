"""Settings of the whole suite: Programs are type-checked after every transform, examples are reproducible."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("FUNCGRAD_CHECK", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["FUNCGRAD_CACHE_DIR"] = ""  # what is tested is compiled

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # what a shell starts in the background ignores Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "funcgrad", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("funcgrad")


@pytest.fixture
def unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long Programs stay as they were traced: equal steps do not become a loop."""
    from funcgrad.control import roll

    monkeypatch.setattr(roll, "EQUATIONS", 10**9)
