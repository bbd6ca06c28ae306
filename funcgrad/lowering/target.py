"""What differs between targets, on one page: the interface that each of them implements, and the choice of one.

Tracing, `simplify`, `schedule`, the places of buffers (`layout`), the scalar code of every operation, the errors of
checks: all that is the same everywhere. A target decides

| | the CPU (`cpu`, `emit`, `executable`) | GPUs (`cuda`) |
|---|---|---|
| what has code | what has none is NumPy's, between two modules | what has none is an error that names it |
| a kernel | a function: loops around one body of vectors | launches: a thread for an index, scalar code |
| who calls the kernels | a driver in the same module | the host, step by step along a plan |
| where values lie | an arena from a pool; results are ndarrays | memory of the device, for each call |
| texts that are shown | LLVM and assembly | PTX, and a table of registers |

The first two are `Kernels`, the others `Backend`. Numba is a `Backend` too: its kernels are Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from funcgrad.core.device_array import device_of, fetched
from funcgrad.core.ir import Equation, Program
from funcgrad.lowering.forms import form_of_slots
from funcgrad.lowering.kernels import Control, Kernel, Library, Loop, Product, Scatter, Schedule, Walk
from funcgrad.lowering.values import Shared, Target

Code = TypeVar("Code")


class Kernels(ABC, Generic[Code]):
    """What a target makes of the kernels of a schedule; those with equal text are one function of the module.

    `target` says what the text may rely on, `shared` holds declarations and helpers, `checks` the equations that can
    fail: a kernel that sees one fail leaves 1 + its position there in the status.
    """

    def __init__(self, target: Target, shared: Shared) -> None:
        self.target, self.shared = target, shared
        self.checks: list[Equation] = []
        self.texts: list[str] = []
        self.names: dict[str, str] = {}

    @classmethod
    def form(cls, e: Equation) -> bool:
        """Whether an equation of a flat Program has code: as its slots say; a target adds to that, or takes away."""
        return form_of_slots(e, cls.form)

    def code(self, kernel: Kernel, s: Schedule) -> Code:
        """The code of one kernel of a schedule."""
        return getattr(self, KINDS[type(kernel)])(kernel, s)  # type: ignore[no-any-return]

    def named(self, text: str) -> str:
        """The name of the function with this text, in which it is ``@KERNEL``."""
        name = self.names.get(text)
        if name is None:
            name = self.names[text] = f"k{len(self.names)}"
            self.texts.append(text.replace("@KERNEL", f"@{name}", 1))
        return name

    @abstractmethod
    def loop(self, kernel: Loop, s: Schedule) -> Code: ...
    @abstractmethod
    def walk(self, kernel: Walk, s: Schedule) -> Code: ...
    @abstractmethod
    def scatter(self, kernel: Scatter, s: Schedule) -> Code: ...
    @abstractmethod
    def product(self, kernel: Product, s: Schedule) -> Code: ...
    @abstractmethod
    def control(self, kernel: Control, s: Schedule) -> Code: ...
    @abstractmethod
    def whole(self, kernel: Library, s: Schedule) -> Code: ...


KINDS = {Loop: "loop", Walk: "walk", Scatter: "scatter", Product: "product", Control: "control", Library: "whole"}


class Runnable(Protocol):
    """A Program that is ready to run."""

    def __call__(self, args: Sequence[Any], donated: tuple[int, ...] = ()) -> list[Any]:
        """Fresh results. For each output, `donated` has the input whose memory it may be given, or -1."""


class Backend(Protocol):
    """A way to make Programs run.

    `stages` are the texts that it shows, `for_arch` whether for a machine that need not be there, and `serves_calls`
    whether a whole Program is machine code of this process, which native entries of jitted functions call.
    """

    stages: tuple[str, ...]
    for_arch: bool
    serves_calls: bool

    def ready(self, program: Program, place: str) -> Runnable:
        """A Program made ready to run: the same object for equal Programs, as long as one of them lives."""

    def text(self, program: Program, stage: str, arch: str | None) -> str:
        """A stage of a Program as text."""


class Placed(Backend, Protocol):
    """A backend with devices, which are asked for by name."""

    def devices(self) -> Sequence[Any]:
        """Those of this machine, with `name`, `title`, `arch` and `memory`; none if something is missing."""

    def device(self, name: str) -> Any:
        """The device of that name, or a DeviceError that says what is missing."""


LOWERINGS: dict[str, Backend] = {}  # of Programs that nobody placed; this and the other are filled by the package
DEVICES: dict[str, Placed] = {}


def backend_of(place: str) -> Backend:
    """What runs Programs in a place: the name of a lowering, or of a device such as ``"cuda:0"``."""
    return LOWERINGS.get(place) or DEVICES[place.partition(":")[0]]


def place_of(program: Program, args: Sequence[Any], lowering: str) -> str:
    """Where a Program runs: on the device that was asked for, else where the arguments are."""
    return (device_of(program, args) or lowering) if lowering in LOWERINGS else lowering


def execute(program: Program, args: Sequence[Any], lowering: str, donated: tuple[int, ...] = ()) -> list[Any]:
    """Run a Program at a jit boundary."""
    place = place_of(program, args, lowering)
    if place == "cpu":
        args = [fetched(x) for x in args]
    return backend_of(place).ready(program, place)(args, donated)
