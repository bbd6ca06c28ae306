"""A neural network that reads digits, trained by Adam in one jitted step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

import funcgrad as fg
from funcgrad.demo import report

HIDDEN, BATCH, EPOCHS, PEAK = 256, 64, 40, 3e-3


def init(rng: np.random.Generator, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Random weights, as wide as the layers need them (He et al. 2015), and zero biases."""
    n, h, c = sizes
    return {
        "w1": rng.normal(0.0, np.sqrt(2 / n), (n, h)),
        "b1": np.zeros(h),
        "w2": rng.normal(0.0, np.sqrt(2 / h), (h, c)),
        "b2": np.zeros(c),
    }


def logits(p: Any, x: Any) -> Any:
    """Unnormalized log-probabilities of the classes."""
    h = fg.nn.relu(x @ p["w1"] + p["b1"])
    return h @ p["w2"] + p["b2"]


def loss(p: Any, x: Any, labels: Any) -> Any:
    """Mean cross-entropy."""
    log_p = fg.nn.log_softmax(logits(p, x))
    return -np.mean(np.sum(fg.nn.one_hot(labels, 10) * log_p, axis=1))


def train(x: Any, labels: Any, rng: np.random.Generator, epochs: int, progress: Any = report.silent) -> Any:
    """Minimize `loss`; returns the parameters, and the loss of every step."""
    params = init(rng, (x.shape[1], HIDDEN, 10))
    batches = len(x) // BATCH
    rate = fg.optim.cosine_decay_schedule(PEAK, epochs * batches)
    optimizer = fg.optim.adamw(rate, weight_decay=0.1)
    state = optimizer.init(params)

    @fg.jit
    def step(params: Any, state: Any, x: Any, labels: Any) -> Any:
        value, gradient = fg.value_and_grad(loss)(params, x, labels)
        updates, state = optimizer.update(gradient, state, params)
        return fg.optim.apply_updates(params, updates), state, value

    losses = []
    with progress(epochs) as show:
        for _ in range(epochs):
            for rows in np.split(rng.permutation(len(x))[: batches * BATCH], batches):
                params, state, value = step(params, state, x[rows], labels[rows])
                losses.append(float(value))
            show(loss=losses[-1])
    return params, losses


def run(console: Console, out: Path, seed: int, epochs: int = EPOCHS) -> dict[str, bool]:
    """Train on four fifths of the digits, test on the rest. Returns the target, and whether it is met."""
    console.rule("[bold]2  A neural network, trained by Adam in one jitted step")
    digits, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        digits / 16, labels, test_size=0.2, stratify=labels, random_state=seed
    )
    rng = np.random.default_rng(seed)
    report.programs(console, loss, init(rng, (64, HIDDEN, 10)), x_train[:BATCH], y_train[:BATCH])

    params, losses = train(x_train, y_train, rng, epochs, report.bar(console))
    found = np.argmax(logits(params, x_test), axis=1)
    accuracy = np.mean(found == y_test)
    console.print(f"\n  {len(y_train)} digits to learn from, {len(y_test)} to test: {accuracy:.2%} are read right\n")

    report.curve(out / "loss.png", losses, title="MLP on digits: training loss", x="step", y="cross-entropy")
    report.matrix(out / "confusion.png", confusion_matrix(y_test, found), title=f"Test digits: {accuracy:.1%} right")
    return {f"MLP: test accuracy {accuracy:.2%} ≥ 97 %": bool(accuracy >= 0.97)}
