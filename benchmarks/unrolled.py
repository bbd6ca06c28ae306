"""First call of the gradient of a Python loop: ``python benchmarks/unrolled.py``.

A pendulum, integrated by 50, 200 and 800 steps of Runge and Kutta in a Python loop, so that 800 steps are some 40 000
operations. The time is that of tracing, differentiating, compiling and running once, without the disk cache.
``--jax 20`` measures JAX as well, up to 20 steps: its time grows fast.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.lowering.emit import emit
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import this_target

BAR = 2.0  # seconds for 800 steps


def angle(steps: int, np: Any) -> Any:
    """The function: the final angle, from angle and speed at the start."""

    def slope(state: Any) -> Any:
        return np.stack([state[1], -9.81 * np.sin(state[0])])

    def f(state: Any) -> Any:
        dt = 0.01
        for _ in range(steps):
            k1 = slope(state)
            k2 = slope(state + 0.5 * dt * k1)
            k3 = slope(state + 0.5 * dt * k2)
            k4 = slope(state + dt * k3)
            state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return state[0]

    return f


def timed(function: Any) -> float:
    """Seconds of the processor."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="*", default=[50, 200, 800])
    parser.add_argument("--jax", type=int, default=0, help="the most steps that JAX is measured for")
    arguments = parser.parse_args()
    os.environ["FUNCGRAD_CACHE_DIR"] = ""
    start = np.array([1.0, 0.0])
    fg.jit(np.sin)(1.0)  # LLVM is loaded
    jax = None
    if arguments.jax:
        try:
            import jax

            jax.config.update("jax_enable_x64", True)
            jax.jit(jax.numpy.sin)(1.0)
        except ImportError:
            print("JAX is not installed")
    print(f"{'steps':>6}{'equations':>11}{'functions':>11}{'seconds':>9}{'JAX':>9}")
    for steps in arguments.steps:
        gradient = fg.grad(angle(steps, np))
        program = fg.make_program(gradient)(start)
        functions = emit(simplify(program), this_target()).text.count("\ndefine ")
        jitted = fg.jit(fg.grad(angle(steps, np)))
        took = timed(lambda jitted=jitted: jitted(start))
        other = "-"
        if jax and steps <= arguments.jax:
            theirs = jax.jit(jax.grad(angle(steps, jax.numpy)))
            other = f"{timed(lambda theirs=theirs: theirs(start).block_until_ready()):.2f}"
        print(f"{steps:6}{len(program.equations):11}{functions:11}{took:9.3f}{other:>9}")
        if steps >= 800:
            print("bar of", BAR, "s:", "met" if took < BAR else "missed")


if __name__ == "__main__":
    main()
