"""Every example in a docstring runs, and shows what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
FILES = [p for p in sorted((REPO / "funcgrad").rglob("*.py")) if ">>> " in p.read_text(encoding="utf-8")]
MODULES = [".".join(p.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__") for p in FILES]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_most_modules_that_users_see_have_examples() -> None:
    assert len(MODULES) >= 25
