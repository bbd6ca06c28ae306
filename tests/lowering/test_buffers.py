"""The arena: places that do not overlap while both are needed, and the page that shows them."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering.buffers import ALIGNMENT, Layout, layout
from funcgrad.lowering.emit import functions_of
from funcgrad.lowering.kernels import Schedule
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.values import Target


def net(params: Any, x: Any) -> Any:
    for w, b in params:
        x = np.tanh(x @ w + b)
    return np.sum(x * x)


PARAMS = [(np.ones((n, m)), np.ones(m)) for n, m in ((4, 5), (5, 7), (7, 7), (7, 3))]
X = np.ones((9, 4))


def laid_out(f: Any, *args: Any) -> tuple[Schedule, list[Any], Layout]:
    program = simplify(fg.make_program(f)(*args))
    s = schedule(program)
    touched = [roots for _, roots in functions_of(s, Target(32, True, True)).calls]
    return s, touched, layout(s, touched, {*program.inputs, *s.outputs})


@pytest.mark.parametrize("f", [net, fg.grad(net), fg.value_and_grad(net), lambda p, x: fg.hvp(net, (p, x), (p, x))])
def test_places_of_buffers_that_are_needed_together_are_apart(f: Any) -> None:
    s, touched, arena = laid_out(f, PARAMS, X)
    assert len(arena.places) > 3
    for root, place in arena.places.items():
        uses = [k for k, roots in enumerate(touched) if root in roots]
        assert (place.first, place.last) == (uses[0], uses[-1])
        assert place.offset % ALIGNMENT == 0 and place.end <= arena.size
        assert place.bytes == root.aval.size * root.aval.dtype.itemsize
        assert root not in s.outputs
    for a, b in combinations(arena.places.values(), 2):
        together = a.first <= b.last and b.first <= a.last
        assert not (together and a.shares(b))
    stored = [r for roots in touched for r in roots if r in s.buffers and r not in s.outputs]
    assert set(arena.places) == set(stored)


def test_places_are_used_again() -> None:
    def unrolled(x: Any, w: Any) -> Any:
        for _ in range(30):
            x = np.tanh(w @ x)
        return x

    _, _, arena = laid_out(unrolled, np.ones(64), np.ones((64, 64)))
    assert len(arena.places) > 50 and arena.size == 2 * 64 * 8


def test_the_page() -> None:
    text = fg.show(fg.value_and_grad(net), PARAMS, X, stage="buffers")
    kernels = fg.show(fg.value_and_grad(net), PARAMS, X, stage="kernels")
    head, *rows, last = text.splitlines()
    assert head.split() == ["buffer", "type", "bytes", "where", "kernels", "shares", "its", "place", "with"]
    *_, arena = laid_out(fg.value_and_grad(net), PARAMS, X)
    assert last == f"arena: {arena.size:,} bytes"
    assert sum("arena +" in row for row in rows) == len(arena.places)
    assert sum(" input " in row for row in rows) == 9 and sum(" result " in row for row in rows) == 9
    results = re.findall(r"^(\S+) .* result ", text, re.MULTILINE)
    assert set(results) == set(kernels.splitlines()[-1].removeprefix("return ").split(", "))
    for row in rows:
        if "arena +" in row:  # the kernels that it names are the first and last that print its name
            name, span = row.split()[0], re.search(r"arena \+ \d+ +(\d+)(?:\.\.(\d+))?", row)
            assert span is not None
            blocks = kernels.split("kernel ")[1:]
            uses = [i for i, block in enumerate(blocks) if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", block)]
            assert (uses[0], uses[-1]) == (int(span[1]), int(span[2] or span[1]))


def test_the_page_of_a_program_in_stages() -> None:
    text = fg.show(lambda x: np.real(np.exp(1j * np.sqrt(x))) + x, np.ones(5), stage="buffers")
    assert "exp, with NumPy" in text and text.count("machine code") == 2
    assert text.startswith("stage 0: machine code\nbuffer ")


def test_assembly() -> None:
    text = fg.show(lambda x: np.sqrt(x) + 1, np.ones(50), stage="asm")
    assert "program:" in text and "sqrt" in text
    with pytest.raises(fg.errors.UnsupportedError, match="exp"):
        fg.show(np.exp, np.ones(5, complex), stage="asm")
