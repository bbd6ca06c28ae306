"""The demo and the command line, as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import funcgrad as fg
from funcgrad.__main__ import main

REPO = Path(__file__).resolve().parents[1]


def test_demo_meets_its_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pictures"
    assert main(["demo", "--out", str(out), "--seed", "1"]) == 0
    text = capsys.readouterr().out
    assert text.count("✓") == 3
    assert "✗" not in text
    assert "program loss(w: f64[31], x: f64[569,30]" in text
    assert "program loss(p.b1: f64[" in text
    assert "program grad(loss)" in text
    for name in ("newton", "loss", "confusion"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_newton_finds_the_optimum() -> None:
    from funcgrad.demo import logistic

    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    y = (x @ [1.0, -2.0, 0.5] + rng.normal(size=50) > 0).astype(int)
    w, history = logistic.newton(x, y)
    assert history[-1][1] < 1e-9
    z = x @ w[1:] + w[0]
    residual = 1 / (1 + np.exp(-z)) - y  # the gradient, by hand
    assert abs(residual.sum()) < 1e-9
    assert np.abs(x.T @ residual + w[1:]).max() < 1e-9


def test_a_missed_target_is_reported(tmp_path: Path) -> None:
    from funcgrad.demo import mlp

    console = Console(file=(tmp_path / "log").open("w"))
    with console.file:
        checks = mlp.run(console, tmp_path, seed=0, epochs=1)
    assert list(checks.values()) == [False]


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"funcgrad {fg.__version__}\n"
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["dance"])
    assert stop.value.code == 2


@pytest.mark.parametrize("package", ["sklearn", "matplotlib", "rich"])
def test_a_missing_extra_is_one_clear_line(package: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; from funcgrad.__main__ import main; "
        f"sys.exit(main(['demo', '--out', {str(tmp_path)!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == f'the demo needs {package}, which is not installed: pip install "funcgrad[demo]"\n'
