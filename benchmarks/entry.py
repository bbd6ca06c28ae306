"""What a call of compiled code costs before and after its work: ``python benchmarks/entry.py``.

The programs are a few instructions, so what is left is the way in and out: recognising the arguments, allocating the
results. Each line is the least of many short rounds, less an empty statement; other load on the machine does not show.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np

from funcgrad.lowering.entry import arm, make_entry, vectorcalled
from funcgrad.lowering.entry_layout import NativeCallable
from funcgrad.lowering.entry_table import Leaf, Node, Spec, Tree, prepare
from funcgrad.lowering.machine import compile_object, header, load

BAR = 0.12  # µs for x + 1
F64 = np.dtype(np.float64)
VECTOR = Leaf(F64, (3,))


@vectorcalled
class Face(NativeCallable):
    """An object with attributes, as `jit` returns it."""


def add_one(inputs: int, size: int) -> str:
    """A program: leaf 0 plus one, for `size` doubles; the other leaves are only there."""
    lines = [
        f"  %px = getelementptr ptr, ptr %args, i64 2\n  %x = load ptr, ptr %px\n"
        f"  %py = getelementptr ptr, ptr %args, i64 {2 + inputs}\n  %y = load ptr, ptr %py\n"
    ]
    lines += [
        f"  %p{i} = getelementptr double, ptr %x, i64 {i}\n  %v{i} = load double, ptr %p{i}\n"
        f"  %w{i} = fadd double %v{i}, 1.0\n"
        f"  %q{i} = getelementptr double, ptr %y, i64 {i}\n  store double %w{i}, ptr %q{i}\n"
        for i in range(size)
    ]
    return f"{header()}define i64 @program(ptr %args) {{\n{''.join(lines)}  ret i64 0\n}}\n"


def entry(spec: Spec, inputs: int, size: int = 3) -> Callable[..., Any]:
    """The object that calls the program, guarded as in `jit`."""
    library = load([compile_object(add_one(inputs, size), 0)], ["program"])
    native = prepare(spec, library["program"], owner=library)
    assert native is not None
    trace: ContextVar[Any] = ContextVar("trace", default=None)
    face = Face()
    arm(face, make_entry([native], lambda *args, **kwargs: None, context=trace, switch=bytearray(1)))
    return face  # type: ignore[return-value]


def microseconds(statement: str, names: dict[str, Any], rounds: int, number: int = 2000) -> float:
    """The least time of a statement."""
    timer = timeit.Timer(statement, globals=names)
    return min(timer.repeat(rounds, number)) / number * 1e6


def cases() -> list[tuple[str, str, dict[str, Any]]]:
    """Label, statement, its names."""
    x = np.arange(3.0)
    params = {f"k{i:02d}": np.arange(3.0) for i in range(20)}
    keys = tuple(params)
    mapping: Tree = Node(dict, (VECTOR,) * 20, keys, tuple(range(20)))
    scalar = Leaf(F64, (), weak=True)
    one = entry(Spec(args=(VECTOR,), results=VECTOR), 1)
    many = prepare_many()
    return [
        ("x + 1 on f64[3]", "f(x)", {"f": one, "x": x}),
        ("  of shape ()", "f(x)", {"f": entry(Spec(args=(Leaf(F64),), results=Leaf(F64)), 1, 1), "x": np.array(1.0)}),
        ("  of a Python float", "f(1.5)", {"f": entry(Spec(args=(scalar,), results=Leaf(F64)), 1, 1)}),
        ("  as the eighth specialisation", "f(x)", {"f": many, "x": x}),
        ("  without the GIL", "f(x)", {"f": entry(Spec(args=(VECTOR,), results=VECTOR, release_gil=True), 1), "x": x}),
        ("4 arrays", "f(x, x, x, x)", {"f": entry(Spec(args=(VECTOR,) * 4, results=VECTOR), 4), "x": x}),
        ("dict of 20 arrays", "f(p)", {"f": entry(Spec(args=(mapping,), results=VECTOR), 20), "p": params}),
        (
            "  with other key objects",
            "f(p)",
            {
                "f": entry(Spec(args=(mapping,), results=VECTOR), 20),
                "p": {"".join(list(k)): v for k, v in reversed(params.items())},
            },
        ),
        (
            "dict of 20 arrays, in and out",
            "f(p)",
            {"f": entry(Spec(args=(mapping,), results=mapping), 20), "p": params},
        ),
        ("keyword", "f(x=x)", {"f": entry(Spec(args=(), keywords=(("x", VECTOR),), results=VECTOR), 1), "x": x}),
        ("donated", "f(x)", {"f": entry(Spec(args=(VECTOR,), results=VECTOR, donated=(0,)), 1), "x": x.copy()}),
        ("NumPy: x + 1", "x + 1", {"x": x}),
        ("NumPy: np.empty(3)", "empty(3)", {"empty": np.empty}),
        ("Python: f(x), returns x", "f(x)", {"f": lambda x: x, "x": x}),
    ]


def prepare_many() -> Callable[..., Any]:
    """Eight specialisations; the last one is that of f64[3]."""
    natives = []
    for n in (10, 9, 8, 7, 6, 5, 4, 3):
        library = load([compile_object(add_one(1, n), 0)], ["program"])
        leaf = Leaf(F64, (n,))
        native = prepare(Spec(args=(leaf,), results=leaf), library["program"], owner=library)
        assert native is not None
        natives.append(native)
    face = Face()
    arm(face, make_entry(natives, lambda *args, **kwargs: None))
    return face  # type: ignore[return-value]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    empty = microseconds("pass", {}, rounds)
    print(f"{'':32}{'µs':>8}")
    for label, statement, names in cases():
        time = microseconds(statement, names, rounds) - empty
        verdict = f"   bar {BAR}" if statement == "f(x)" and label.startswith("x + 1") else ""
        print(f"{label:32}{time:8.3f}{verdict}")


if __name__ == "__main__":
    main()
