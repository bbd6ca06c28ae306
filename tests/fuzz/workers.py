"""Processes that run programs, several at a time: what they print comes line by line; one that dies is noticed."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

COMMAND = (sys.executable, "-W", "ignore", "-m", "tests.fuzz")
SILENCE = 300.0  # seconds without a word after which a process hangs


class Worker:
    """A process for the programs of some seeds.

    Attributes
    ----------
    first, count
        The seeds that it has not yet finished.
    started
        The case that it runs.
    """

    def __init__(self, first: int, count: int, options: list[str], given: Any) -> None:
        self.first = first
        self.count = count
        self.started = ""
        command = [*COMMAND, "--child", str(count), "--seed", str(first), *options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )  # Ctrl-C is for the parent
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(given).encode())
        self.process.stdin.close()
        self.output = self.process.stdout.fileno()
        self.buffer = b""
        self.last = time.monotonic()

    def reports(self) -> Iterator[dict[str, Any]]:
        """What it has printed since."""
        data = os.read(self.output, 1 << 20)
        if not data:
            self.stop()
        self.last = time.monotonic()
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "start" in report:
                self.started = report["start"]
                continue
            if "case" in report:
                self.finish()
            yield report

    def finish(self) -> None:
        """A program is done."""
        self.started = ""
        self.first += 1
        self.count -= 1

    @property
    def stopped(self) -> bool:
        """Whether it has ended, or was ended because it said nothing for too long."""
        if self.process.returncode is None and time.monotonic() - self.last > SILENCE:
            self.stop()
        return self.process.returncode is not None

    def stop(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def ready(crew: list[Worker], seconds: float) -> list[Worker]:
    """Those that have printed something, or ended, within so many seconds."""
    with selectors.DefaultSelector() as selector:
        for worker in crew:
            selector.register(worker.output, selectors.EVENT_READ, worker)
        return [key.data for key, _ in selector.select(seconds)]
