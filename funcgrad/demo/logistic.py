"""Logistic regression by Newton's method: with an exact Hessian, a few steps reach the optimum to the last digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import funcgrad as fg
from funcgrad.demo import report


def loss(w: Any, x: Any, y: Any) -> Any:
    """Negative log-likelihood of the labels y (0 or 1), and a penalty on all weights but w[0], the intercept."""
    z = x @ w
    return np.sum(np.logaddexp(0.0, z) - y * z) + 0.5 * np.sum(w[1:] ** 2)


def newton(x: Any, y: Any, tolerance: float = 1e-8, max_steps: int = 50) -> tuple[Any, list[tuple[float, float]]]:
    """Minimize `loss` from w = 0. Returns w, and the loss and the gradient's norm before every step."""
    value_and_gradient = fg.jit(fg.value_and_grad(loss))
    hessian = fg.jit(fg.hessian(loss))
    w = np.zeros(x.shape[1])
    history = []
    for _ in range(max_steps):
        value, gradient = value_and_gradient(w, x, y)
        history.append((float(value), float(np.linalg.norm(gradient))))
        if history[-1][1] < tolerance:
            break
        w = w - np.linalg.solve(hessian(w, x, y), gradient)
    return w, history


def run(console: Console, out: Path) -> dict[str, bool]:
    """Fit the breast-cancer data, and compare with scikit-learn. Returns the targets, and whether they are met."""
    console.rule("[bold]1  Logistic regression by Newton's method", align="left")
    features, y = load_breast_cancer(return_X_y=True)
    features = StandardScaler().fit_transform(features)
    x = np.column_stack([np.ones(len(y)), features])
    w = np.zeros(x.shape[1])
    report.programs(console, fg.make_program(loss)(w, x, y), fg.make_program(fg.grad(loss))(w, x, y))

    w, history = newton(x, y)
    table = Table("step", "loss", "norm of gradient", box=None, padding=(0, 3), header_style="dim")
    for step, (value, norm) in enumerate(history):
        table.add_row(str(step), f"{value:.10f}", f"{norm:.1e}")
    console.print(table)

    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(features, y)
    theirs = np.concatenate([reference.intercept_, reference.coef_[0]])
    difference, norm = np.abs(w - theirs).max(), history[-1][1]
    console.print(f"\n  {len(y)} samples, {len(w)} weights: {np.mean((x @ w > 0) == y):.1%} are classified right")
    console.print(f"  the largest difference from scikit-learn's weights is {difference:.1e}\n")
    report.curve(
        out / "newton.png",
        [norm for _, norm in history],
        title="Newton's method converges quadratically",
        x="step",
        y="norm of the gradient",
    )
    return {
        f"logistic regression: norm of the gradient {norm:.1e} < 1e-6": norm < 1e-6,
        f"logistic regression: weights within {difference:.1e} < 1e-4 of scikit-learn's": bool(difference < 1e-4),
    }
