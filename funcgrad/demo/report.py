"""What the demo shows: Programs, a progress bar, pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.style import context
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.theme import Theme

import funcgrad as fg

BLUE, RED, GREY, PALE = "#2f6fab", "#c0392b", "#777777", "#e8e8e8"
STYLE = {
    "figure.dpi": 160,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


class Colours(RegexHighlighter):
    """The colours of a printed Program."""

    base_style = "program."
    highlights = (
        r"(?P<word>\b(?:program|return)\b)",
        r"(?P<type>\b(?:bool|[fiu]\d+)\[[\d,]*\])",
        r"= (?P<op>\w+)(?P<params>\[.*?\])?",
        r"(?P<comment># .*)",
    )


def console() -> Console:
    """A terminal with the colours of Programs."""
    colours = {"word": "bold", "type": "cyan", "op": "bold blue", "params": "blue", "comment": "dim italic"}
    return Console(theme=Theme({f"program.{name}": style for name, style in colours.items()}), highlight=False)


def programs(console: Console, *found: fg.Program) -> None:
    """Print Programs."""
    for program in found:
        console.print(Colours()(str(program)), soft_wrap=True)
        console.print()


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar: ``with progress(console, epochs) as show``, then ``show(loss=...)`` after each of them."""
    columns = (
        TextColumn("  epoch {task.completed:2} / {task.total}"),
        BarColumn(bar_width=30),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, loss=float("nan"))
        yield lambda loss: bar.update(task, advance=1, loss=loss)


@contextmanager
def picture(path: Path, size: tuple[float, float], **labels: Any) -> Iterator[Any]:
    """Axes of a figure that is written to `path`."""
    with context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        yield axes
        axes.set(**labels)
        figure.savefig(path)


def curve(path: Path, values: list[float], *, title: str, x: str, y: str) -> None:
    """Positive numbers, on a logarithmic scale, against their position."""
    with picture(path, (6, 3.4), title=title, xlabel=x, ylabel=y) as axes:
        few = len(values) < 50
        axes.semilogy(values, color=BLUE, lw=1.5 if few else 0.7, marker="o" if few else "", alpha=1 if few else 0.5)
        if not few:
            mean = np.convolve(values, np.full(25, 1 / 25), mode="valid")
            axes.semilogy(np.arange(len(mean)) + 12, mean, color=BLUE, lw=1.8)
        axes.grid(color=PALE)
        axes.set_axisbelow(True)


def matrix(path: Path, counts: Any, *, title: str) -> None:
    """A confusion matrix."""
    classes = range(len(counts))
    with picture(
        path, (4.6, 4.8), title=title, xlabel="read as", ylabel="digit", xticks=classes, yticks=classes
    ) as axes:
        axes.imshow(np.where(np.eye(len(counts)), counts, np.nan), cmap="Blues", vmin=0)
        for (row, column), n in np.ndenumerate(counts):
            colour = "white" if row == column else RED if n else GREY
            axes.text(column, row, n or "·", color=colour, ha="center", va="center")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
