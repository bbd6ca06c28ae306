"""Logistic regression by Newton's method: gradient and Hessian are exact, so six or seven steps reach the optimum."""

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
    """Negative log-likelihood of the labels y (0 or 1), and a penalty on all weights but the intercept w[0]."""
    z = x @ w[1:] + w[0]
    return np.sum(np.logaddexp(0.0, z) - y * z) + 0.5 * np.sum(w[1:] ** 2)


def newton(x: Any, y: Any, tolerance: float = 1e-9, max_steps: int = 50) -> tuple[Any, list[tuple[float, float]]]:
    """Minimize `loss` from w = 0; returns w, and loss and gradient norm of every step."""
    value_and_gradient = fg.jit(fg.value_and_grad(loss))
    hessian = fg.jit(fg.hessian(loss))
    w = np.zeros(x.shape[1] + 1)
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
    console.rule("[bold]1  Logistic regression by Newton's method")
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    w, history = newton(x, y)

    report.programs(console, loss, np.zeros(x.shape[1] + 1), x, y)
    table = Table("step", "loss", "‖gradient‖", box=None, padding=(0, 3), header_style="dim")
    for step, (value, norm) in enumerate(history):
        table.add_row(str(step), f"{value:.12f}", f"{norm:.2e}")
    console.print(table)

    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(x, y)
    theirs = np.concatenate([reference.intercept_, reference.coef_[0]])
    difference = np.abs(w - theirs).max()
    accuracy = np.mean((x @ w[1:] + w[0] > 0) == y)
    console.print(f"\n  {len(y)} samples, {x.shape[1]} features, training accuracy {accuracy:.2%}")
    console.print(f"  largest difference from scikit-learn's coefficients: {difference:.1e}\n")

    report.curve(
        out / "newton.png",
        [norm for _, norm in history],
        title="Newton's method: logistic regression",
        x="step",
        y="gradient norm",
    )
    return {
        f"Newton: gradient norm {history[-1][1]:.1e} < 1e-6": history[-1][1] < 1e-6,
        f"Newton: coefficients within {difference:.1e} < 1e-4 of scikit-learn": bool(difference < 1e-4),
    }
