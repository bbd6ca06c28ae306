"""Whole random programs in all ways: a sample always, many with ``-m fuzz``; and the search for planted faults."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from funcgrad.control import roll
from funcgrad.testing.drawing import Drawer, Random, Style
from funcgrad.testing.plain import PLAIN
from funcgrad.testing.recipes import literal
from funcgrad.testing.vocabulary import OPERATIONS, Impossible
from tests.fuzz import run, with_cuda, workers
from tests.fuzz.aim import KEPT, TRIES, Known, aimed
from tests.fuzz.cases import Case, at_random
from tests.fuzz.comparisons import Outcome, check
from tests.fuzz.impossible import IMPOSSIBLE
from tests.fuzz.matrix import COLUMNS, ROWS, Cell, cells_of, holds
from tests.fuzz.minimise import minimised, size
from tests.fuzz.planted import FAULTS

REPO = Path(__file__).resolve().parents[2]
SEEDS = [line.split("#")[0].strip() for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()]
CUDA_SAMPLE = (3, 8, 11, 15, 23, 31, 44, 53)
SAMPLE = (5, 6, 11, 14, 19, 25, 30, 33, 36, 45, 52)


@pytest.fixture(autouse=True)
def rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few equal steps become a loop already."""
    monkeypatch.setattr(roll, "STEPS", run.ROLLED[0])
    monkeypatch.setattr(roll, "EQUATIONS", run.ROLLED[1])


def agree(case: Case, seconds: float = 120.0) -> None:
    """A program in all ways."""
    recipe = case.recipe
    outcome = check(recipe, case.seed, seconds=seconds)
    assert outcome.failure is None, f"{case}\n{recipe}\n{outcome.failure}"
    assert {"eager", "jit"} <= {*outcome.ways, *outcome.unsettled} or outcome.unsettled


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_sample(seed: int) -> None:
    agree(at_random(seed))


@pytest.mark.cuda
@pytest.mark.parametrize("seed", CUDA_SAMPLE)
def test_a_sample_on_a_gpu(seed: int) -> None:
    outcome = Outcome()
    with with_cuda.settings(seed):
        with_cuda.compare(at_random(seed).recipe, outcome, seed)
    assert outcome.failure is None
    assert outcome.ways == ["cuda", "cuda vjp"]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(500, 700))
def test_many(seed: int) -> None:
    agree(at_random(seed))


@pytest.mark.fuzz
@pytest.mark.parametrize("case", [line for line in SEEDS if line])
def test_kept_seeds(case: str) -> None:
    agree(Case.of(case))


# -- the fuzzer itself


def test_a_program_prints_as_code_that_runs() -> None:
    recipe = Case(8, "linear_recurrence", ("in_scan", "in_grad")).recipe
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(repr(recipe), {})
    assert printed.getvalue() == f"{recipe(*recipe.args)}\n"


def test_every_operation_finds_operands() -> None:
    args: list[Any] = [np.zeros(shape) + 0.3 for shape in ((), (3,), (4,), (3, 3))]
    args += [np.int64(2), np.array([1, -2, 3]), np.array([True, False, True]), np.bool_(True)]
    for name, operation in OPERATIONS.items():
        d = Drawer(Random(0), Style(1, 0, (), ()), args)
        for _ in range(300):
            if not d.steps:
                with contextlib.suppress(Impossible):
                    operation(d)
        assert d.steps, name


def test_a_program_is_made_small() -> None:
    recipe = Case(41, "tanh", ("in_vmap", "in_while")).recipe
    assert recipe.uses("tanh")
    small = minimised(recipe, lambda r: r.uses("tanh"), seconds=30)
    assert size(small)[0] == 1 and size(recipe)[0] > 5
    small.function(PLAIN)(*small.args)


def test_reasons_of_empty_cells_are_of_cells() -> None:
    for key, reason in IMPOSSIBLE.items():
        row, column = key if isinstance(key, tuple) else (key, COLUMNS[0])
        assert row in ROWS and column in COLUMNS and reason


def test_cells_are_read_from_the_trace() -> None:
    recipe = Case(3, "", ("in_scan", "in_grad")).recipe
    cells = cells_of(recipe, check(recipe))
    assert ("loop", "vjp", 3) in cells and ("loop", "eager", 3) in cells
    assert not any([c for c in cells if c[1] == "vmap"])


@pytest.mark.parametrize("cell", [("gcd", "scan", 2), ("custom_backward", "vmap", 1), ("stack_length", "cond", 1)])
def test_cases_for_a_cell_are_found(cell: Cell) -> None:
    cases = [aimed(random.Random(k), k, cell, Known()) for k in range(3 * TRIES)]
    case = next(c for c in cases if holds(c.recipe, cell))
    assert repr(Case.of(str(case)).recipe) == repr(case.recipe)


def test_what_programs_held_is_nested() -> None:
    known = Known()
    known.add(["mask_mul", "sin"], 1, (False, 1, 12), "7//in_grad")
    cell = ("mask_mul", "vmap", 3)
    cases = [aimed(random.Random(k), k, cell, known) for k in range(TRIES)]
    assert any([c.seed == 7 and c.outer[-1] in ("in_vmap", "in_vmap_of_some") for c in cases])


def test_the_smallest_cases_are_known() -> None:
    known = Known()
    for steps in (9, 4, 7, 5, 6):
        known.add(["sin"], 2, (False, 0, steps), f"{steps}//")
    assert known.of("sin", 2) == ["4//", "5//", "6//"][:KEPT] and not known.of("sin", 1)
    assert Known(json.loads(json.dumps(known.all()))).samples == known.samples


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3/dto/", "there is no operation 'dto'; similar ones: dot"),
        ("3//in_jitt", "there is no wrapper 'in_jitt'; similar ones: in_jit"),
        ("3//in_jit/in_nothing_at_all_of_this", "there is no wrapper 'in_nothing_at_all_of_this'"),
        ("3", "it is not seed/operation/stack"),
    ],
)
def test_names_of_cases_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.of(text)


CHILD = """
import json, os, sys, time
count, first = int(sys.argv[2]), int(sys.argv[4])
sys.stdin.read()
for seed in range(first, first + count):
    print(json.dumps({"start": f"{seed}//"}), flush=True)
    if seed == 103:
        os.kill(os.getpid(), 11)
    time.sleep(0.02)
    print(json.dumps({"case": f"{seed}//", "ways": ["eager"], "cells": [["sin", "eager", 1]], "height": 0,
                      "weight": [False, 0, 1]}), flush=True)
print(json.dumps({"tried": [[["cos", "vmap", 2], 4]]}))
"""


def test_a_run_of_several_processes_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(run, "CHUNK", 10)
    stop = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    stop.start()
    found = run.main(1.0, 100, (), tmp_path / "report.json", {}, workers=2)
    stop.cancel()
    assert found.total["programs"] > 20 and found.total["faults"] == 1 and found.faults[0]["case"] == "103//"
    assert found.seen["sin", "eager", 1] == found.total["programs"] - 1
    printed = capsys.readouterr().out
    assert "interrupted" in printed and printed.count("empty cells") > 2
    again = run.Run(tmp_path / "report.json", {})
    assert again.total == found.total and again.tried["cos", "vmap", 2] == 4
    assert again.known.of("sin", 0) == found.known.of("sin", 0)


# -- planted faults


def search(name: str, minutes: float) -> dict[str, Any]:
    """What the search for a planted fault printed at the end; that the process died is a finding, too."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--planted", name, "--minutes", str(minutes)]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    last: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return last if "found" in last else {"fault": name, "found": f"the process died: {result.returncode}", **last}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    report = search(name, 10.0)
    print(json.dumps(report))
    assert report["found"], f"not found in {report['programs']} programs"


def test_a_planted_fault_is_found_soon() -> None:
    assert search("loop.transpose", 2.0)["found"]


def test_an_array_is_printed_in_full() -> None:
    for x in (np.float32(0.1), np.array([[1, 2]], np.int32), np.zeros((0, 3)), np.array(True), np.arange(3.0) / 3):
        y = eval(literal(x))
        assert np.array_equal(y, x) and y.dtype == np.asarray(x).dtype and y.shape == np.shape(x)
