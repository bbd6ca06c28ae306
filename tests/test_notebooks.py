"""The notebooks run from the first cell to the last, check themselves, and are stored without outputs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

REPO = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((REPO / "notebooks").glob("*.ipynb"))
SECONDS = 60


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings(
    "default"
)  # what Jupyter's machinery warns of is not ours; the kernel has filters of its own
def test_the_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("PYTHONWARNINGS", "error::RuntimeWarning,error::UserWarning")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    start = time.monotonic()
    client.execute()  # a cell that raises raises here, with its text
    assert time.monotonic() - start < SECONDS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_stored_clean(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count is None and not cell.outputs for cell in code)
    assert any(cell.source.startswith("assert") or "\nassert" in cell.source for cell in code), "it checks nothing"
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
