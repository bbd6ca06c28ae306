"""Two GPUs that are not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from funcgrad.lowering.cuda.device import forget, register
from tests.cuda.interpreted import Interpreted


@pytest.fixture(scope="module")
def gpus() -> Iterator[tuple[Interpreted, Interpreted]]:
    """Interpreters of PTX as ``"cuda:0"`` and ``"cuda:1"``."""
    devices = Interpreted(0), Interpreted(1)
    for d in devices:
        register(d)
    yield devices
    for d in devices:
        forget(d.name)


@pytest.fixture
def gpu(gpus: tuple[Interpreted, Interpreted]) -> Interpreted:
    """The first of them."""
    return gpus[0]
