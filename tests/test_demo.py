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
from funcgrad.demo import logistic, mlp

REPO = Path(__file__).resolve().parents[1]


def test_demo_meets_its_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pictures"
    assert main(["demo", "--out", str(out), "--seed", "1"]) == 0
    text = capsys.readouterr().out
    assert text.count("✓") == 3
    assert "✗" not in text
    assert "\nprogram loss(w: f64[31], x: f64[569,31], y: i64[569]) -> f64[] {\n" in text
    assert "\nprogram grad(loss)(w: f64[31], x: f64[569,31], y: i64[569]) -> f64[31] {\n" in text
    assert "epoch 40 / 40" in text
    for name in ("newton", "loss", "confusion"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_newton_finds_the_optimum() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(50), rng.normal(size=(50, 3))])
    y = (x @ [0.3, 1.0, -2.0, 0.5] + rng.normal(size=50) > 0).astype(int)
    w, history = logistic.newton(x, y)
    assert history[-1][1] < 1e-8
    by_hand = x.T @ (1 / (1 + np.exp(-x @ w)) - y) + [0.0, *w[1:]]
    assert np.abs(by_hand).max() < 1e-8


def test_a_missed_target_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "run", lambda *args: {"met": True})
    monkeypatch.setattr(mlp, "run", lambda *args: {"missed": False})
    assert main(["demo", "--out", str(tmp_path)]) == 1


def test_one_epoch_is_not_enough(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--out", __file__], "is not a folder"), (["--seed", "-1"], "expected 0 to 2**32 - 1, got -1")],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["demo", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("package", ["sklearn", "matplotlib", "rich"])
def test_a_missing_extra_is_one_clear_line(package: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; from funcgrad.__main__ import main; "
        f"sys.exit(main(['demo', '--out', {str(tmp_path)!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == f'the demo needs {package}, which is not installed: pip install "funcgrad[demo]"\n'
