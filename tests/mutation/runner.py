"""Running the suite against mutants: pytest collects once, and every mutant is a fork of that process.

First the suite runs against the functions as they are, compiled anew from their source, each reporting that it was
called: a test is a killer of the functions that it reaches. Then, for each mutant, its killers run, the quick ones
first, until one fails.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from funcgrad.core import canonical
from funcgrad.core.ir import Program
from funcgrad.core.primitive import registry
from tests.mutation import targets as source, wrappers
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.operators import mutants

REPO = Path(__file__).resolve().parents[2]
KILLERS = ("tests/ops", "tests/transforms", "tests/api", "tests/lax", "tests/control", "tests/core",
           "tests/numpy/test_derivatives.py", "tests/test_implicit.py", "tests/test_extend.py")  # fmt: skip
GOLDEN = "test_golden"
TRAITS = "tests/transforms/test_mask.py"  # how structural zeros go through: read there, with no rule called
SECONDS = 6.0  # of killers for one mutant
AGAIN = 4  # so many times as long for those that survived
FEW = 10  # tests that reach a function, so that those are added that reach its slots
IDLE = 12  # tests after which a fault around a slot that never changed anything is no mutant
TIMERS = (signal.SIGPROF, signal.SIGALRM)
MEMORY = 6 * 2**30


@dataclass
class Job:
    """A mutant: where it is, what it is, what makes it, and which slots it counts for."""

    where: str  # file:line, or the slot
    text: str
    make: Callable[[], None]
    slots: list[str]
    hit: str  # what its killers reach
    kind: str  # source, wrapper, zeros, transform
    outcome: str = ""  # killed, crashed, hung, survived, idle (it never changed anything), equivalent
    killer: str = ""
    killers: int = 0  # how many tests it was given to
    tried: frozenset[str] = frozenset()  # in vain, before

    @property
    def identity(self) -> tuple[str, str]:
        """What names it in the list of equivalent ones: line numbers do not."""
        return self.where.partition("#")[0], self.text


@dataclass
class Coverage:
    """How long each test takes, and which tests reach a function or slot."""

    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)


# -- one test


def forget() -> None:
    """No Program is known from before."""
    canonical._programs = OrderedDict()
    canonical._count[:] = [0]


def passes(item: Any) -> bool:
    """Whether a test passes."""
    forget()
    failures.clear()
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    return not failures


failures: list[str] = []  # of the test that runs


# -- children


def warm() -> None:
    """Load now what every child would load."""
    import numba  # noqa: F401

    import funcgrad as fg

    fg.jit(lambda x: np.sin(x) + 1.0)(np.ones(3))
    fg.hessian(lambda x: np.sum(np.exp(x) @ x))(np.ones(3))
    forget()


def quiet() -> None:
    """No output, no endless life, no endless memory."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    import faulthandler

    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


class Children:
    """At most `workers` forked processes at a time; each writes its answer to a file."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.folder = Path(tempfile.mkdtemp(prefix="mutation"))
        self.running: dict[int, Any] = {}
        self.seconds = 0.0  # of processors, in all of them

    def run(self, tasks: Iterable[tuple[Any, Callable[[], Any], float]]) -> Iterator[tuple[Any, Any, int]]:
        """For each (key, task, seconds): the key, what the task returned (None: nothing), and the exit status."""
        for key, task, seconds in tasks:
            while len(self.running) >= self.workers:
                yield self._wait()
            self._start(key, task, seconds)
        while self.running:
            yield self._wait()

    def _start(self, key: Any, task: Callable[[], Any], seconds: float) -> None:
        pid = os.fork()
        if pid:
            self.running[pid] = key
            return
        status = 1
        try:
            for s, timer, limit in ((signal.SIGPROF, signal.ITIMER_PROF, 1), (signal.SIGALRM, signal.ITIMER_REAL, 20)):
                signal.signal(s, signal.SIG_DFL)  # it ends the process, whatever it does
                signal.setitimer(timer, limit * seconds)
            quiet()
            answer = task()
            (self.folder / str(os.getpid())).write_text(json.dumps(answer))
            status = 0
        except BaseException as error:  # whatever it is, the process ends here
            status = 2
            (self.folder / "errors").open("a").write(f"{key}: {type(error).__name__}: {error}\n")
        finally:
            os._exit(status)

    def _wait(self) -> tuple[Any, Any, int]:
        pid, status, usage = os.wait3(0)
        self.seconds += usage.ru_utime + usage.ru_stime
        key = self.running.pop(pid)
        path = self.folder / str(pid)
        answer = json.loads(path.read_text()) if path.exists() else None
        path.unlink(missing_ok=True)
        return key, answer, status


# -- the control run


def instrumented(found: dict[Any, source.Target], hits: set[Any]) -> None:
    """All functions and slots report to `hits`."""
    for target in found.values():
        source.instrument(target, hits)
    for name, slot in source.filled():
        rule = getattr(registry[name], slot)
        wrapped = _reporting(rule, f"{name}.{slot}", hits)
        setattr(registry[name], slot, wrapped)


def _reporting(rule: Any, key: str, hits: set[Any]) -> Any:
    def reporting(*args: Any, **params: Any) -> Any:
        hits.add(key)
        return rule(*args, **params)

    return reporting


def _control(items: Sequence[Any], found: dict[Any, source.Target]) -> Any:
    hits: set[Any] = set()
    instrumented(found, hits)
    out = []
    for item in items:
        hits.clear()
        start = time.process_time()
        good = passes(item)
        out.append((item.nodeid, good, time.process_time() - start, list(hits)))
    return out


def control(items: Sequence[Any], found: dict[Any, source.Target], children: Children, coverage: Coverage) -> None:
    """Find out which tests reach what."""
    groups = [items[i : i + 150] for i in range(0, len(items), 150)]
    tasks = [(k, lambda g=g: _control(g, found), 600.0) for k, g in enumerate(groups)]
    for k, answer, status in children.run(tasks):
        if answer is None:
            coverage.failed.append(f"{groups[k][0].nodeid} … ended with {status}")
            continue
        for name, good, seconds, hits in answer:
            coverage.seconds[name] = seconds
            if not good:
                coverage.failed.append(name)
            for h in hits:
                coverage.reached[h].append(name)
        print(f"control run: {len(coverage.seconds)} tests", flush=True)


# -- mutants


def evenly(items: list[Any], n: int) -> list[Any]:
    """At most `n` of the items, spread over them."""
    return items if len(items) <= n else [items[i * len(items) // n] for i in range(n)]


def source_jobs(found: dict[Any, source.Target], each: int, kind: str) -> Iterator[Job]:
    """The faults in the source of functions."""
    for target in found.values():
        names = target.functions[0].__globals__
        known = lambda name, names=names: name in names or hasattr(builtins, name)
        file, _, function = target.key
        for m in evenly(list(mutants(target.node, known)), each):
            where = f"{file}:{function.rpartition(':')[0]}#{m.line}"
            make = lambda t=target, m=m: source.install(t, m.node)
            yield Job(where, m.text, make, target.slots, target.name, kind)


def wrapper_jobs() -> Iterator[Job]:
    """The faults around slots."""
    for name, slot in source.filled():
        for fault in wrappers.wrappers_of(name, slot):
            where = f"{name}.{slot}"
            yield Job(where, fault, wrappers.wrap(name, slot, fault), [where], where, "wrapper")
    for name, op in registry.items():
        for fault, make in wrappers.traits_of(op).items():
            yield Job(f"{name}.zeros", fault, make, [f"{name}.zeros"], f"{name}.jvp", "zeros")


def by_turns(jobs: list[Job]) -> list[Job]:
    """One of each function and slot, then another one of each, and so on: a run that is cut short saw all of them."""
    count: dict[str, int] = defaultdict(int)
    turn = []
    for job in jobs:
        turn.append(count[job.hit])
        count[job.hit] += 1
    return [jobs[i] for i in sorted(range(len(jobs)), key=turn.__getitem__)]


def _mutant(job: Job, killers: Sequence[Any]) -> Any:
    wrappers.applied[0] = 0
    job.make()
    for k, item in enumerate(killers):
        if not passes(item):
            return "killed", item.nodeid, 0
        if job.kind == "wrapper" and k == IDLE and not wrappers.applied[0]:
            break
    return "survived", "", wrappers.applied[0]


def judge(jobs: Sequence[Job], items: dict[str, Any], coverage: Coverage, children: Children, report: Any) -> None:
    """Run the killers of every mutant, and more of them for those that survive."""
    doubtful: list[Job] = []

    def first(done: int, total: int, job: Job, seconds: float) -> None:
        if job.outcome == "survived":
            doubtful.append(job)
        else:
            report(done - len(doubtful), total, job, seconds)

    _judge(jobs, items, coverage, children, first, SECONDS)
    offset = len(jobs) - len(doubtful)
    again = lambda done, total, job, seconds: report(offset + done, len(jobs), job, seconds)
    _judge(doubtful, items, coverage, children, again, AGAIN * SECONDS)


def _judge(
    jobs: Sequence[Job], items: dict[str, Any], coverage: Coverage, children: Children, report: Any, limit: float
) -> None:
    proven: dict[str, dict[str, None]] = defaultdict(dict)  # function or slot → tests that killed mutants there

    def tasks() -> Iterator[Any]:
        for job in jobs:
            killers = killers_of(job, coverage, proven[job.hit], limit)
            seconds = sum([coverage.seconds[k] for k in killers])
            job.killers += len(killers)
            job.tried |= set(killers)
            yield job, lambda j=job, ks=killers: _mutant(j, [items[k] for k in ks]), 10 + 4 * seconds

    for done, (job, answer, status) in enumerate(children.run(tasks()), 1):
        if answer is None and not os.WIFSIGNALED(status):
            job.outcome, job.killer = "survived", f"the mutation test itself failed: {status}"
        elif answer is None:
            job.outcome = "hung" if os.WIFSIGNALED(status) and os.WTERMSIG(status) in TIMERS else "crashed"
            job.killer = f"status {status}"
        else:
            job.outcome, job.killer, count = answer
            if job.outcome == "killed":
                proven[job.hit] = {job.killer: None} | proven[job.hit]
            elif job.kind == "wrapper" and job.killers and not count:
                job.outcome = "idle"
            elif EQUIVALENT.get(job.identity):
                job.outcome = "equivalent"
        report(done, len(jobs), job, children.seconds)


def killers_of(job: Job, coverage: Coverage, proven: dict[str, None], limit: float) -> list[str]:
    """The tests that reach a mutant, within `limit`: those that killed others there, then those of its primitive."""
    names = {s.partition(".")[0] for s in job.slots} if len(job.slots) < 8 else set()
    zeros = job.kind == "zeros"
    rank: dict[str, int] = {}
    count: dict[str, int] = defaultdict(int)  # by turns from all functions of tests, since their cases are alike
    reached = set(coverage.reached.get(job.hit, ()))
    if len(reached) < FEW:  # or it has changed since the coverage was kept
        reached.update(*[coverage.reached.get(slot, ()) for slot in job.slots])
    if zeros:
        traits = [test for test in coverage.seconds if test.startswith(TRAITS)]
        reached = {*reached, *coverage.reached.get(job.hit.replace(".jvp", ".transpose"), ()), *traits}
    tests = sorted(set(reached) - job.tried, key=coverage.seconds.__getitem__)
    for test in tests:
        function = test.partition("[")[0]
        rank[test] = count[function]
        count[function] += 1

    def order(test: str) -> Any:
        function, _, inside = test.partition("[")
        own = any([inside.startswith((n + "-", n + "]", n + "(", n + "[")) or f"-{n}-" in inside for n in names])
        about = zeros and (
            function.startswith(TRAITS)
            or "structural_zeros" in function
            or function.endswith(("_at_special_points", "_points"))
        )
        return GOLDEN in test, test not in proven, not about, not own, rank[test], coverage.seconds[test]

    found, total = [], 0.0
    for test in sorted(tests, key=order):
        if GOLDEN in test:
            found.append(test)
        elif total < limit * (3 if zeros else 1):
            total += coverage.seconds[test]
            found.append(test)
    return found


# -- the session


class Mutation:
    """The plugin of pytest that mutates in place of running the tests."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.jobs: list[Job] = []
        self.coverage = Coverage()

    def pytest_collection(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutation", settings.get_profile("funcgrad"), database=None, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutation")
        kept: Path | None = self.options.coverage
        folder = kept.with_suffix(".compiled") if kept is not None else tempfile.mkdtemp(prefix="mutation")
        os.environ["FUNCGRAD_CACHE_DIR"] = str(folder)  # what is not mutated compiles once

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            failures.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool:
        for program in gc.get_objects():
            if type(program) is Program:
                program._memo.clear()
        warm()
        gc.freeze()
        self.main(session.items)
        return True

    def main(self, tests: Sequence[Any]) -> None:
        children = Children(self.options.workers)
        items = {item.nodeid: item for item in tests}
        found = source.targets()
        transforms = source.transform_targets()
        everything = {**found, **transforms}
        cache: Path | None = self.options.coverage
        if cache is not None and cache.exists():
            data = json.loads(cache.read_text())
            self.coverage.seconds.update({k: v for k, v in data["seconds"].items() if k in items})
            self.coverage.reached.update({h: [k for k in ks if k in items] for h, ks in data["reached"].items()})
            self.coverage.failed = data["failed"]
        new = [item for item in tests if item.nodeid not in self.coverage.seconds]
        if new:
            control(new, everything, children, self.coverage)
            if cache is not None:
                cache.write_text(json.dumps(vars(self.coverage)))
        each = self.options.each
        jobs = [
            *source_jobs(found, each, "source"),
            *wrapper_jobs(),
            *source_jobs(transforms, each, "transform"),
        ]
        only = self.options.only
        if only:
            jobs = [j for j in jobs if any(o in j.where or any(s.startswith(o) for s in j.slots) for o in only)]
        self.jobs = by_turns(jobs)
        report = self.options.report
        todo = sorted([j for j in self.jobs if not report.settled(j)], key=report.seen)  # what is slow comes last
        if not self.options.equivalent:
            for job in todo:
                job.outcome = "equivalent" if job.identity in EQUIVALENT else ""
        judge([j for j in todo if not j.outcome], items, self.coverage, children, report.one)


def run(options: Any) -> Mutation:
    """Collect the suite and judge all mutants."""
    plugin = Mutation(options)
    arguments = ["-n0", "-q", "-s", "-p", "no:cacheprovider", *[str(REPO / k) for k in options.killers or KILLERS]]
    if options.select:
        arguments += ["-k", options.select]
    code = pytest.main(arguments, plugins=[plugin])
    if not plugin.jobs and code:
        sys.exit(code)
    return plugin
