"""The examples in the docstrings of custom rules, checkpoint and implicit differentiation."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["api.custom_jvp", "api.custom_vjp", "api.checkpoint", "implicit"])
def test_examples(name: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(f"funcgrad.{name}"))
    assert attempted and not failed
