"""The processor, and LLVM text made into machine code: `compile_object`, `load`.

In: the text of one LLVM module. Out: object bytes that hold no address of this process, hence may be kept on disk;
then a `Library` with the addresses of its functions. No IR pass runs: what is written is what is compiled. llvmlite
is imported at the first use.

    >>> text = header() + "define i64 @twice(i64 %x) {\\n  %y = shl i64 %x, 1\\n  ret i64 %y\\n}\\n"
    >>> library = load([compile_object(text, level=0)], exports=["twice"])
    >>> import ctypes
    >>> ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library["twice"])(21)
    42

Invariants: the llvmlite wheel has LLVM's assertions on, so a module that is malformed in a way that `verify` does not
see ends the process; whoever writes text writes it typed. The addresses of a `Library` hold as long as it does.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from funcgrad.base.errors import ProgramError
from funcgrad.base.shelter import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEVELS = (0, 1, 2, 3)
T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """The processor that code is made for.

    Attributes
    ----------
    triple, cpu, features : str
        As LLVM spells them; `features` is a comma-separated list such as ``"+avx2,-avx512f"``.
    """

    triple: str
    cpu: str
    features: str

    def has(self, feature: str) -> bool:
        """Whether the processor has `feature`, for example ``"avx512f"``."""
        return f"+{feature}" in self.features.split(",")

    @property
    def vector_bytes(self) -> int:
        """The width of a vector register that kernels should use: 64, 32 or 16."""
        wide = all([self.has(name) for name in ("avx512f", "avx512dq", "avx512vl")])
        return 64 if wide else 32 if self.has("avx2") else 16

    @property
    def fma(self) -> bool:
        """Whether ``llvm.fma`` is one instruction; without it each lane is a call of libm."""
        return self.has("fma") or self.triple.startswith(("aarch64", "arm64"))


@cache
def _binding() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    guard = getattr(llvm.ffi.lib._lock, "_lock", None)
    if guard is not None and hasattr(os, "register_at_fork"):  # a fork in the middle of a compilation waits for its end
        os.register_at_fork(before=guard.acquire, after_in_parent=guard.release, after_in_child=guard.release)
    return llvm


@cache
def _native_host() -> Host:
    llvm = _binding()
    features = llvm.get_host_cpu_features().flatten()
    return Host(llvm.get_default_triple(), llvm.get_host_cpu_name(), features)


_overridden: ContextVar[Host | None] = ContextVar("funcgrad_host", default=None)


def host() -> Host:
    """The processor that code is made for: this one, unless `overridden`."""
    return _overridden.get() or _native_host()


@contextmanager
def overridden(cpu: str, features: str = "") -> Iterator[Host]:
    """Make code for another processor of the same family, for tests: ``with overridden("x86-64-v3", "+avx2,+fma"):``"""
    token = _overridden.set(Host(_native_host().triple, cpu, features))
    try:
        yield host()
    finally:
        _overridden.reset(token)


@lru_cache(maxsize=16)
def _target_machine(target: Host, level: int) -> Any:
    """LLVM's code generator; llvmlite's lock keeps threads apart."""
    return (
        _binding()
        .Target.from_triple(target.triple)
        .create_target_machine(
            cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="default", jit=True
        )
    )


@lru_cache(maxsize=16)
def _header(target: Host) -> str:
    layout = _target_machine(target, 1).target_data
    return f'target triple = "{target.triple}"\ntarget datalayout = "{layout}"\n'


def header() -> str:
    """The lines that open a module: target triple and data layout."""
    return _header(host())


def compile_object(text: str, level: int = 1) -> bytes:
    """Object code of an LLVM module.

    Parameters
    ----------
    text
        The module, opened by `header`.
    level
        Of the code generator: 1 for loops, 0 for straight-line code (2 to 10 times faster to make).

    Returns
    -------
    bytes
        Position independent; external symbols are open. The same text on the same host gives the same bytes.

    Raises
    ------
    ProgramError
        LLVM does not accept the text.
    """
    _require_memory(NEEDED * len(text))
    return _with_llvm(_compile, text, level)


def _compile(text: str, level: int) -> bytes:
    with _parsed(text) as module:
        return bytes(_machine_of(level).emit_object(module))


def _with_llvm(function: Callable[..., T], *args: Any) -> T:
    """Call a function that uses llvmlite, which an interrupt would leave locked, or with memory half given back."""
    held = getattr(_binding().ffi.lib._lock, "_lock", None)
    while held is not None and held._is_owned():  # a finalizer was interrupted in this thread
        held.release()
    return uninterrupted(function, *args)


ROOM, NEEDED = 2**26, 64


def _require_memory(size: int) -> None:
    """Raise MemoryError unless there is room for LLVM, which ends the process where it gets no memory."""
    try:
        mmap.mmap(-1, ROOM + size).close()
    except OSError:
        raise MemoryError(f"no memory to compile: {ROOM + size:,} bytes are not to be had") from None


def assembly(text: str, level: int = 1) -> str:
    """The instructions that `compile_object` makes of the same arguments, as text for an assembler."""
    with _parsed(text) as module:
        return str(_machine_of(level).emit_assembly(module))


def _machine_of(level: int) -> Any:
    assert level in LEVELS
    return _target_machine(host(), level)


@contextmanager
def _parsed(text: str) -> Iterator[Any]:
    """A verified module, in a context of its own."""
    llvm = _binding()
    try:
        with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
            module.verify()
            yield module
    except RuntimeError as error:
        raise ProgramError(f"LLVM refuses the text of a kernel: {str(error).strip()}") from error


_numbers = itertools.count()
_loaded: dict[int, tuple[Any, Any]] = {}


class Library:
    """Machine code in memory; unloaded when it is dropped.

    ``library[name]`` is the address of an exported symbol. Whoever calls it keeps the library alive.
    """

    __slots__ = ("__weakref__", "_addresses", "_code")

    def __init__(self, jit: Any, tracker: Any, addresses: Mapping[str, int]) -> None:
        self._code = _Code(next(_numbers))
        _loaded[int(self._code)] = jit, tracker
        self._addresses = dict(addresses)

    def __getitem__(self, name: str) -> int:
        return self._addresses[name]

    def close(self) -> None:
        """Unload the code. Its addresses must not be used any more."""
        self._addresses.clear()
        self._code.unload()


class _Code(int):
    """A number in `_loaded`, of which the code is unloaded when the last library goes that has it.

    The garbage collector does not know of ints. So, of garbage, this goes after all finalizers have run, which may
    still call the code.
    """

    __slots__ = ()

    def unload(self, loaded: dict[int, tuple[Any, Any]] = _loaded) -> None:
        found = loaded.pop(self, None)
        if found is not None:
            for x in reversed(found):
                x.__del__()  # at interpreter exit llvmlite leaves everything loaded

    __del__ = unload


def load(objects: Iterable[bytes], exports: Iterable[str], imports: Mapping[str, int] | None = None) -> Library:
    """Put object code into memory.

    Parameters
    ----------
    objects
        From `compile_object`, for this processor; they may refer to each other.
    exports
        Symbols whose addresses are wanted.
    imports
        Address of each symbol that the objects leave open.

    Raises
    ------
    ProgramError
        A symbol is missing, or an object is not one.
    """
    codes = list(objects)
    _require_memory(NEEDED * sum(map(len, codes)))
    return _with_llvm(_load, codes, tuple(exports), dict(imports or {}))


def _load(objects: list[bytes], exports: tuple[str, ...], imports: dict[str, int]) -> Library:
    llvm = _binding()
    # A session of its own per library: a shared one would keep 9 KB for ever for each name.
    jit = llvm.create_lljit_compiler(_target_machine(_native_host(), 1), suppress_errors=True)
    builder = llvm.JITLibraryBuilder()
    for code in objects:
        builder.add_object_img(code)
    for name, address in imports.items():
        builder.import_symbol(name, address)
    for name in exports:
        builder.export_symbol(name)
    try:
        tracker = builder.link(jit, f"funcgrad{next(_numbers)}")
    except RuntimeError as error:
        jit.close()
        raise ProgramError(f"LLVM cannot load the code of a kernel: {str(error).strip()}") from error
    return Library(jit, tracker, {name: tracker[name] for name in exports})
