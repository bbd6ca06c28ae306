"""The command line: ``python -m funcgrad demo`` and ``python -m funcgrad --version``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import funcgrad

EXTRAS = {"sklearn", "matplotlib", "rich"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 when the demo misses a target, 2 when it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m funcgrad", description="Functional automatic differentiation")
    parser.add_argument("--version", action="version", version=f"funcgrad {funcgrad.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="fit two models with exact derivatives, and draw pictures",
        description="Logistic regression by Newton's method, and a neural network trained by Adam.",
    )
    demo.add_argument(
        "--out", type=Path, metavar="FOLDER", default=Path("funcgrad-demo"), help="where the pictures go (%(default)s)"
    )
    demo.add_argument(
        "--seed", type=int, metavar="N", default=0, help="for the weights, the batches and the test set (%(default)s)"
    )
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    if given.out.exists() and not given.out.is_dir():
        demo.error(f"argument --out: {given.out} is not a folder")
    if not 0 <= given.seed < 2**32:
        demo.error(f"argument --seed: expected 0 to 2**32 - 1, got {given.seed}")
    try:  # loaded here, because it needs packages that funcgrad itself does not
        application = importlib.import_module("funcgrad.demo")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        print(f'the demo needs {package}, which is not installed: pip install "funcgrad[demo]"', file=sys.stderr)
        return 2
    return int(application.main(given.out, given.seed))


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # old code pages have no ✓
    sys.exit(main())
