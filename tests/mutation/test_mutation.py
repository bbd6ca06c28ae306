"""The mutation test is tested: faults are made, the wrong are found, the same is not; all of them, when asked to."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1
from tests.mutation import targets as source, wrappers
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.operators import mutants
from tests.mutation.runner import REPO, forget
from tests.rule_checker import RuleFailure, all_primitives, check_rules

all_primitives()
X = np.array([[0.5, -1.25, 0.75], [1.5, 0.25, -0.5]])
TARGETS = source.targets()
TRANSFORMS = source.transform_targets()


def texts(code: str) -> set[str]:
    """What the faults in a function say."""
    return {m.text for m in mutants(ast.parse(code).body[0], {"sub", "cos"}.__contains__)}


def target_of(name: str, slot: str) -> source.Target:
    """The function that is behind this slot alone."""
    (found,) = [t for t in TARGETS.values() if t.slots == [f"{name}.{slot}"]]
    return found


@pytest.fixture
def restored() -> Iterator[None]:
    """Whatever is mutated is as it was, afterwards."""
    codes = [(f, f.__code__) for t in [*TARGETS.values(), *TRANSFORMS.values()] for f in t.functions]
    slots = [(op, slot, getattr(op, slot)) for op in registry.values() for slot in (*source.SLOTS, "traits", "guarded")]
    yield
    for f, code in codes:
        f.__code__ = code
    for op, slot, value in slots:
        setattr(op, slot, value)
    forget()


def applied(name: str, **params: Any) -> Callable[..., Any]:
    """The application of a primitive, as a function."""
    return lambda *args: bind1(registry[name], *args, **params)


def test_the_faults_of_a_function() -> None:
    found = texts(
        "def rule(x, axis):\n    if x is None:\n        return axis\n    return add(sin(x), x[:axis + 1]), x\n"
    )
    assert found >= {
        "add(sin(x), x[:axis + 1])  →  sub(sin(x), x[:axis + 1])",
        "add(sin(x), x[:axis + 1])  →  sin(x)",
        "add(sin(x), x[:axis + 1])  →  x[:axis + 1]",
        "sin(x)  →  cos(x)",
        "1  →  2",
        "axis + 1  →  axis - 1",
        "x[:axis + 1]  →  x",
        "if x is None  →  if not x is None",
        "if x is None  →  if False",
        "(add(sin(x), x[:axis + 1]), x)  →  (x, add(sin(x), x[:axis + 1]))",
    }
    assert not [t for t in found if "add(x" in t], "a sum in the other order is no fault"


def test_messages_and_checks_of_lengths_are_left_alone() -> None:
    assert not texts(
        "def rule(x, y):\n    '''Doc 1.'''\n    raise ValueError(f'{x + 1}', 2)\n    zip(x, strict=True)\n"
    ) - {"zip(x, strict=True)  →  (nothing)"}


def test_every_function_is_found_in_its_source() -> None:
    for name, slot in source.filled():
        code = source.slot_function(name, slot).__code__
        node = source.node_of(code)
        assert node is not None, (name, slot)
        if isinstance(node, ast.Lambda):
            assert [a.arg for a in node.args.args] == list(code.co_varnames[: code.co_argcount]), (name, slot)


def test_every_slot_has_faults() -> None:
    for name, slot in source.filled():
        if slot in ("jvp", "transpose", "batch", "split") and not source.refuses(name, slot):
            assert len(wrappers.wrappers_of(name, slot)) >= 5, (name, slot)


@pytest.mark.usefixtures("restored")
def test_a_function_compiled_anew_is_the_same() -> None:
    hits: set[str] = set()
    for target in [*TARGETS.values(), *TRANSFORMS.values()]:
        source.instrument(target, hits)
    check_rules(applied("cos"), X)
    check_rules(applied("reduce_sum", axes=(0,)), X, oracle="linear")
    assert target_of("cos", "jvp").name in hits and any([h.startswith("transforms/batch.py:_batch") for h in hits])


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("text", ["sin(x)  →  cos(x)", "neg(mul(x_dot, sin(x)))  →  mul(x_dot, sin(x))"])
def test_a_fault_in_the_source_is_found(text: str) -> None:
    target = target_of("cos", "jvp")
    (mutant,) = [m for m in mutants(target.node, target.functions[0].__globals__.__contains__) if m.text == text]
    source.install(target, mutant.node)
    forget()
    with pytest.raises(RuleFailure, match=r"^jvp"):
        check_rules(applied("cos"), X)


FAULTS = [
    (slot, fault)
    for slot, name in (("jvp", "cos"), ("batch", "cos"), ("transpose", "cumsum"))
    for fault in wrappers.wrappers_of(name, slot)
]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("slot", "fault"), FAULTS)
def test_a_fault_around_a_rule_is_found(slot: str, fault: str) -> None:
    name, params = ("cumsum", {"axis": 0, "reverse": False}) if slot == "transpose" else ("cos", {})
    wrappers.applied[0] = 0
    wrappers.wrap(name, slot, fault)()
    forget()
    try:
        check_rules(applied(name, **params), X)
    except RuleFailure:
        return
    assert not wrappers.applied[0], "it changed something, and nobody noticed"


def test_the_equivalent_ones_exist() -> None:
    by_name: dict[str, list[source.Target]] = {}
    for t in [*TARGETS.values(), *TRANSFORMS.values()]:
        by_name.setdefault(f"{t.key[0]}:{t.key[2].rpartition(':')[0]}", []).append(t)
    made: dict[str, set[str]] = {}
    for where, text in EQUIVALENT:
        if where not in made:
            made[where] = set()
            for t in by_name.get(where, ()):
                names: Any = t.functions[0].__globals__
                known = lambda n, names=names: n in names or hasattr(builtins, n)
                made[where] |= {m.text for m in mutants(t.node, known)}
            name, _, slot = where.partition(".")
            if name in registry:
                op = registry[name]
                made[where] |= set(wrappers.traits_of(op) if slot == "zeros" else wrappers.wrappers_of(name, slot))
        assert text in made[where], f"{where} has no mutant {text!r} any more"


@pytest.mark.slow
def test_every_mutant_is_caught() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.mutation"], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
