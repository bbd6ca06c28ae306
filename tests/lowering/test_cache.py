"""Object code on disk: hits across processes, damaged and foreign entries, privacy, a folder that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering import cache

CODE = "import numpy as np, funcgrad as fg; print(fg.jit(lambda x: x * 2 + 1)(np.arange(3.0)).tolist())"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(place: Path) -> list[Path]:
    return sorted(p for p in place.rglob("*") if p.is_file())


def fresh() -> list[float]:
    scale = float(np.random.default_rng().random())  # another Program each time
    return fg.jit(lambda x: x * scale)(np.ones(2)).tolist()


def test_another_process_finds_the_entry(place: Path) -> None:
    written = []
    for _ in range(2):
        out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        assert out.stdout.strip() == "[1.0, 3.0, 5.0]" and not out.stderr
        written.append([(p, p.stat().st_ino) for p in entries(place)])
    assert written[0] and written[0] == written[1]  # nothing is made or written again


def test_entries_are_private_and_whole(place: Path) -> None:
    fresh()
    assert place.stat().st_mode & 0o077 == 0 and entries(place)
    for entry in entries(place):
        assert entry.read_bytes().startswith(cache.MARK) and entry.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"x" + b, lambda b: b"", lambda b: b[:-5] + b"12345"])
def test_a_damaged_entry_is_ignored_with_a_warning(place: Path, damage: object) -> None:
    text, made = "text", []

    def make() -> bytes:
        made.append(1)
        return b"code of some length"

    assert cache.cached(text, 1, make) == cache.cached(text, 1, make) == b"code of some length"
    assert len(made) == 1
    (entry,) = entries(place)
    entry.write_bytes(damage(entry.read_bytes()))  # type: ignore[operator]
    with pytest.warns(UserWarning, match="damaged"):
        assert cache.cached(text, 1, make) == b"code of some length"
    assert len(made) == 2 and cache.cached(text, 1, make) and len(made) == 2  # written again


def test_an_entry_that_others_can_write_is_ignored(place: Path) -> None:
    cache.cached("text", 1, lambda: b"code")
    (entry,) = entries(place)
    entry.chmod(0o666)
    with pytest.warns(UserWarning, match="another user"):
        assert cache.cached("text", 1, lambda: b"other") == b"other"


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert len(fresh()) == 2


def test_keys_tell_everything_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from funcgrad.lowering.machine import overridden

    keys = {cache.key("a", 1), cache.key("b", 1), cache.key("a", 0)}
    with overridden("x86-64-v3", "+avx2,+fma"):
        keys.add(cache.key("a", 1))
    assert len(keys) == 4


def test_old_entries_go_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LIMIT", 250)
    for i in range(5):
        cache.cached(f"text {i}", 1, lambda: b"x" * 50)
        os.utime(max(entries(place), key=lambda p: p.stat().st_mtime), (i, i))
    cache._trim(place)
    assert sum(p.stat().st_size for p in entries(place)) <= 250 and len(entries(place)) == 2


def test_an_entry_under_the_name_of_another_is_ignored(place: Path) -> None:
    cache.cached("one", 1, lambda: b"code of one")
    (one,) = entries(place)
    data = one.read_bytes()
    cache.cached("two", 1, lambda: b"code of two")
    (two,) = [p for p in entries(place) if p != one]
    two.write_bytes(data)
    with pytest.warns(UserWarning, match="damaged"):
        assert cache.cached("two", 1, lambda: b"code of two") == b"code of two"


def test_an_entry_that_cannot_be_touched_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    cache.cached("text", 1, lambda: b"code")
    monkeypatch.setattr(os, "utime", refuse)
    assert cache.cached("text", 1, lambda: b"other") == b"code"
