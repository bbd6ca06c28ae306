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

HIDDEN, CLASSES, BATCH, EPOCHS = 512, 10, 64, 40


def init(rng: np.random.Generator, pixels: int) -> dict[str, Any]:
    """Random weights, such that the layers keep the variance of their inputs (He et al. 2015); zero biases."""
    return {
        "w1": rng.normal(0.0, np.sqrt(2 / pixels), (pixels, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": rng.normal(0.0, np.sqrt(2 / HIDDEN), (HIDDEN, CLASSES)),
        "b2": np.zeros(CLASSES),
    }


def logits(p: Any, x: Any) -> Any:
    """Log-probabilities of the digits, up to a constant."""
    h = fg.nn.relu(x @ p["w1"] + p["b1"])
    return h @ p["w2"] + p["b2"]


def loss(p: Any, x: Any, labels: Any) -> Any:
    """Mean cross-entropy."""
    log_p = fg.nn.log_softmax(logits(p, x))
    return -np.mean(np.sum(fg.nn.one_hot(labels, CLASSES) * log_p, axis=1))


def train_step(optimizer: fg.optim.GradientTransformation) -> Any:
    """The jitted function that does everything a batch is for."""

    @fg.jit
    def step(p: Any, state: Any, x: Any, labels: Any) -> Any:
        value, gradient = fg.value_and_grad(loss)(p, x, labels)
        updates, state = optimizer.update(gradient, state, p)
        return fg.optim.apply_updates(p, updates), state, value

    return step


def run(console: Console, out: Path, seed: int = 0, epochs: int = EPOCHS) -> dict[str, bool]:
    """Train on four fifths of the digits, test on the rest. Returns the target, and whether it is met."""
    console.rule("[bold]2  A neural network, trained by Adam in one jitted step", align="left")
    images, digits = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16, digits, test_size=0.2, stratify=digits, random_state=seed)
    batches = len(x) // BATCH
    optimizer = fg.optim.adamw(fg.optim.cosine_decay_schedule(3e-3, epochs * batches), weight_decay=0.1)
    step = train_step(optimizer)

    rng = np.random.default_rng(seed)
    p = init(rng, x.shape[1])
    state = optimizer.init(p)
    program = step.trace(p, state, x[:BATCH], y[:BATCH])
    console.print(f"  loss, gradient, Adam and learning rate are one Program of {len(program.equations)} equations\n")

    losses = []
    with report.progress(console, epochs) as show:
        for _ in range(epochs):
            for rows in np.split(rng.permutation(len(x))[: batches * BATCH], batches):
                p, state, value = step(p, state, x[rows], y[rows])
                losses.append(float(value))
            show(loss=losses[-1])

    read = np.argmax(logits(p, x_test), axis=1)
    accuracy = np.mean(read == y_test)
    console.print(f"\n  {len(y)} digits to learn from, {len(y_test)} to test: {accuracy:.1%} are read right\n")
    report.curve(out / "loss.png", losses, title="Training loss of the network", x="step", y="cross-entropy")
    report.matrix(
        out / "confusion.png",
        confusion_matrix(y_test, read),
        title=f"{np.sum(read == y_test)} of {len(y_test)} test digits are read right",
    )
    return {f"neural network: {accuracy:.1%} ≥ 97 % of the test digits": bool(accuracy >= 0.97)}
