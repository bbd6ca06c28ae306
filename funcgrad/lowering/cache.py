"""Object code on disk, so that a Program compiles once per machine and not once per process.

An entry is named by the hash of everything that decides its bytes: our text, the processor and its features, the
level, and the version of llvmlite. The file holds a mark, the hash of the code, and the code; nothing
in it is unpickled or evaluated, and one that does not fit its hash is ignored with a warning and written again. Files
appear by renaming, in a folder that only the user can write.

The folder is ``FUNCGRAD_CACHE_DIR``, else ``funcgrad`` in the user's cache directory; an empty ``FUNCGRAD_CACHE_DIR``
turns the cache off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from funcgrad.lowering.machine import host

MARK = b"funcgrad object 2\n"
LIMIT = 512 * 2**20  # bytes kept; the entries used longest ago go first


def folder() -> Path | None:
    """Where entries lie, or None if the cache is off."""
    given = os.environ.get("FUNCGRAD_CACHE_DIR")
    if given == "":
        return None
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("funcgrad", appauthor=False))


def key(text: str, level: int) -> str:
    """The name of an entry."""
    import llvmlite

    h = host()
    parts = (MARK.decode(), text, str(level), h.triple, h.cpu, h.features, llvmlite.__version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def cached(text: str, level: int, make: Callable[[], bytes]) -> bytes:
    """The object code of `text`: from the cache, or from `make` and then kept."""
    root = folder()
    if root is None:
        return make()
    name = key(text, level)
    path = root / name[:2] / name
    code = _read(path)
    if code is None:
        code = make()
        _write(root, path, code)
    return code


def _read(path: Path) -> bytes | None:
    try:
        info = path.stat()
        if hasattr(os, "getuid") and (info.st_uid != os.getuid() or info.st_mode & stat.S_IWOTH):
            warnings.warn(f"funcgrad ignores the cache entry {path}: another user can write it", stacklevel=2)
            return None
        data = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # not ours to write, or trimmed meanwhile
        os.utime(path)  # used now
    digest, code = data[len(MARK) : len(MARK) + 32], data[len(MARK) + 32 :]
    if not data.startswith(MARK) or not code or _digest(path, code) != digest:
        warnings.warn(f"funcgrad ignores the cache entry {path}: it is damaged", stacklevel=2)
        return None
    return code


def _digest(path: Path, code: bytes) -> bytes:
    """Of an entry's name and code: an entry under another name is as bad as a damaged one."""
    return hashlib.sha256(path.name.encode() + b"\0" + code).digest()


def _write(root: Path, path: Path, code: bytes) -> None:
    """Keep an entry; a cache that cannot be written is no error."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MARK + _digest(path, code) + code)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        if path.name.startswith("00"):  # now and then: one entry in 256
            _trim(root)
    except OSError:
        return


def _trim(root: Path) -> None:
    files = [(p.stat().st_mtime, p.stat().st_size, p) for p in root.glob("??/*") if p.is_file()]
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files, key=lambda f: f[0]):
        if total <= LIMIT:
            break
        path.unlink(missing_ok=True)
        total -= size
