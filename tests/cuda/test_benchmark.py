"""The benchmark for a machine with a GPU, dry, on the interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import funcgrad as fg
from funcgrad.lowering.cuda import device as gpus

REPO = Path(__file__).parents[2]


@pytest.fixture
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", REPO / "benchmarks" / "gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


QUICK = ["environment", "bandwidth", "launches"]
LONG = ["programs", "digits", "registry"]


@pytest.mark.parametrize("sections", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)])
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_the_benchmark_runs_on_the_interpreter(
    benchmark: Any, tmp_path: Path, sections: list[str], device: str, capsys: Any
) -> None:
    out = tmp_path / "a" / "b"
    assert benchmark.main(["--dry-run", "--device", device, "--out", str(out), *sections]) == 0
    said = capsys.readouterr().out
    assert ("nothing was compared" in said) == (sections == QUICK) and ("comparisons are right" in said) == (
        sections == LONG
    )
    found = json.loads((out / "gpu.json").read_text())
    assert list(found) == sections and all("rows" in s for s in found.values())
    assert "the times mean nothing" in (out / "gpu.md").read_text()
    assert fg.devices() == fg.devices("cpu") or importlib.util.find_spec("cupy")  # the interpreter is gone


def test_a_section_that_fails_does_not_stop_the_others(benchmark: Any, tmp_path: Path) -> None:
    benchmark.SECTIONS = {"bad": lambda b: [][0], "good": lambda b: [{"x": 1, "ok": True}]}
    assert benchmark.main(["--dry-run", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert "IndexError" in found["bad"]["error"] and found["good"]["rows"] == [{"x": 1, "ok": True}]


@pytest.mark.parametrize("arguments", [[], ["--small"], ["bandwidth"], ["--device", "cuda:3"]])
def test_without_a_gpu_it_says_once_what_is_missing(
    benchmark: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(gpus, "_known", {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: None)
    assert benchmark.main(["--out", str(tmp_path), *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("nothing was run: the package cupy is not installed")
    assert said.err.count("cupy is not installed") == 1 and "Traceback" not in said.err
    assert 'pip install "funcgrad[cuda]"' in said.err and "--dry-run runs all of this without a GPU" in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu"], "--device is a GPU, cuda or cuda:1 …, got 'cpu'"),
        (["--device", "gpu"], "--device is a GPU, cuda or cuda:1 …, got 'gpu'"),
        (["--device", "cuda:x"], "--device is a GPU"),
        (["bandwith"], "no section 'bandwith'; did you mean bandwidth? sections are environment, programs, digits,"),
        (["programs", "zzz"], "there is no section 'zzz'; sections are environment, programs, digits, bandwidth,"),
        (["--out", __file__], f"--out {__file__}: File exists"),
    ],
)
def test_odd_arguments_are_refused(benchmark: Any, capsys: Any, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as end:
        benchmark.main(["--dry-run", *arguments])
    said = capsys.readouterr()
    assert end.value.code == 2 and message in said.err and said.out == ""


def test_every_option_and_section_has_a_help_text(benchmark: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        benchmark.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    for word in ("the first, by default", "where gpu.json and gpu.md go", "the times mean nothing", "needs no GPU"):
        assert word in said
    for name, section in benchmark.SECTIONS.items():
        assert f"{name} {section.__doc__}" in said


def test_the_command_of_the_page_runs(tmp_path: Path) -> None:
    page = (REPO / "docs" / "cuda.md").read_text("utf-8")
    (command,) = [line.split() for line in page.splitlines() if line.startswith("python benchmarks/gpu.py")]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [sys.executable, REPO / command[1], *command[2:], "launches"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["nothing was compared", "see gpu.md"] and (tmp_path / "gpu.md").exists()
