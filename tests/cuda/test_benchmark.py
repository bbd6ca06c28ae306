"""The benchmark for a machine with a GPU, dry, on the interpreter."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]


@pytest.fixture
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", REPO / "benchmarks" / "gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


QUICK = ["environment", "bandwidth", "launches"]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("sections", [QUICK, pytest.param(["programs", "digits", "registry"], marks=pytest.mark.slow)])
def test_the_benchmark_runs_on_the_interpreter(benchmark: Any, tmp_path: Path, sections: list[str]) -> None:
    assert benchmark.main(["--small", "--out", str(tmp_path), *sections]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found) == sections and all("rows" in s for s in found.values())
    assert "the times mean nothing" in (tmp_path / "gpu.md").read_text()


def test_a_section_that_fails_does_not_stop_the_others(benchmark: Any, tmp_path: Path) -> None:
    benchmark.SECTIONS = {"bad": lambda b: [][0], "good": lambda b: [{"x": 1, "ok": True}]}
    assert benchmark.main(["--small", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert "IndexError" in found["bad"]["error"] and found["good"]["rows"] == [{"x": 1, "ok": True}]
