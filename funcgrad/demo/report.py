"""What the demo shows: Programs, a progress bar, pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax

import funcgrad as fg

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

BLUE, GREY = "#2f6fab", "#8a8a8a"
STYLE = {
    "figure.dpi": 150,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def programs(console: Console, loss: Callable[..., Any], *args: Any) -> None:
    """Print what was traced, and what `grad` made of it."""
    for f in (loss, fg.grad(loss)):
        console.print(str(fg.make_program(f)(*args)), markup=False, soft_wrap=True)
        console.print()


@contextmanager
def silent(total: int) -> Iterator[Callable[..., None]]:
    """No progress bar."""
    yield lambda **fields: None


def bar(console: Console) -> Any:
    """A progress bar: ``with bar(console)(epochs) as show: ... show(loss=...)`` after each of them."""

    @contextmanager
    def progress(total: int) -> Iterator[Callable[..., None]]:
        columns = (
            TextColumn("  epoch {task.completed}/{task.total}"),
            BarColumn(bar_width=40),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as p:
            task = p.add_task("", total=total, loss=float("nan"))
            yield lambda **fields: p.update(task, advance=1, **fields)

    return progress


def curve(path: Path, values: Any, *, title: str, x: str, y: str) -> None:
    """Positive numbers against their position, on a logarithmic scale."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
        axes.semilogy(values, color=BLUE, lw=1.6 if len(values) < 50 else 0.8, marker="o" if len(values) < 50 else "")
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.grid(color="#e6e6e6")
        figure.savefig(path)
        plt.close(figure)


def matrix(path: Path, counts: Any, *, title: str) -> None:
    """A confusion matrix."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.8, 4.8), layout="constrained")
        axes.imshow(np.log1p(counts), cmap="Blues")
        for (row, column), n in np.ndenumerate(counts):
            if n:
                axes.text(column, row, n, ha="center", va="center", color="white" if row == column else "#b03030")
        axes.set(title=title, xlabel="read as", ylabel="is", xticks=range(len(counts)), yticks=range(len(counts)))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        figure.savefig(path)
        plt.close(figure)
