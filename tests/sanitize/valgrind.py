"""Compiled code under valgrind: ``python -m tests.sanitize.valgrind``.

Each buffer is a block of the heap of exactly its size, and valgrind's memcheck watches what reaches outside of one, or
depends on what nobody has written. Errors count where machine code of ours made them, itself or through a function of
the C library or BLAS; what Python, NumPy and the loader do is not held against it. With ``plant``, a load reaches one
element too far, which must be seen.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tests.sanitize.direct import check, plant
from tests.sanitize.programs import SAMPLE, random_sample

ROOT = Path(__file__).parents[2]
HELPERS = ("libc", "libopenblas", "libscipy_openblas", "vgpreload", "ld-linux")

_c = ctypes.CDLL(None)
_c.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
_c.free.argtypes = [ctypes.c_void_p]


class Allocated:
    """Memory of the heap, aligned as an arena is."""

    def __init__(self, size: int) -> None:
        place = ctypes.c_void_p()
        assert not _c.posix_memalign(ctypes.byref(place), 64, size)
        self.address, self.size = place.value or 0, size

    def close(self) -> None:
        """Give it back."""
        _c.free(self.address)


def inside(planted: bool) -> None:
    """What runs under valgrind."""
    programs = [*SAMPLE.items(), *random_sample(4)]
    if planted:
        plant()
        programs = programs[:1]
    for name, (f, args) in programs:
        try:
            check(name, f, args, [Allocated])
        except AssertionError:
            assert planted
    print(f"{len(programs)} programs", flush=True)


def ours(error: ElementTree.Element) -> bool:
    """Whether machine code of ours made an error: it has no name and no file."""
    stack = error.find("stack")
    for frame in stack.findall("frame") if stack is not None else ():
        library = Path(frame.findtext("obj", "")).name
        if not library and frame.find("fn") is None:
            return True
        if not library.startswith(HELPERS):
            return False
    return False


def described(error: ElementTree.Element) -> str:
    """The kind of an error, where it was, and what is known of the address."""
    frames = [f"{f.findtext('ip')} {f.findtext('fn', '?')}" for f in error.iter("frame")][:4]
    texts = [
        error.findtext("what") or error.findtext("xwhat/text", ""),
        *[a.text or "" for a in error.findall("auxwhat")],
    ]
    return f"{error.findtext('kind')}: {'; '.join(texts)} ({', '.join(frames)})"


def watched(*arguments: str) -> Iterator[str]:
    """The errors of a run under valgrind that are ours."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [
            "--tool=memcheck",
            "--partial-loads-ok=no",
            "--redzone-size=128",
            "--leak-check=no",
            "--error-limit=no",
        ]
        command = ["valgrind", *options, "--xml=yes", f"--xml-file={report}", "--child-silent-after-fork=yes"]
        environment = {**os.environ, "PYTHONMALLOC": "malloc", "OPENBLAS_NUM_THREADS": "1"}
        environment["FUNCGRAD_CACHE_DIR"] = os.environ.get("FUNCGRAD_CACHE_DIR", "")
        script = [sys.executable, "-m", "tests.sanitize.valgrind", "inside", *arguments]
        subprocess.run([*command, *script], cwd=ROOT, env=environment, check=True)
        errors = ElementTree.parse(report).getroot().findall("error")
        print(f"{len(errors)} errors, of Python and all libraries")
        yield from (described(e) for e in errors if ours(e))


def main(arguments: list[str]) -> int:
    """Zero if machine code made no errors, or if it was to make one and did."""
    planted = "plant" in arguments
    if "inside" in arguments:
        inside(planted)
        return 0
    if shutil.which("valgrind") is None:
        print("there is no valgrind")
        return 1
    found = list(watched(*arguments))
    print("\n".join(found))
    print(f"{len(found)} errors of compiled code{', as planted' if planted and found else ''}")
    return int(bool(found) != planted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
