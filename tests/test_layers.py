"""The layers of funcgrad, read from the source without importing it.

Every module imports only from its own layer and from lower ones, no two modules import each other in a
circle, nothing of funcgrad is imported inside a function, and the compilers are imported only there.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "funcgrad"

# From the lowest to the highest. Each name is a module or a package directly under funcgrad.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("core",),
    ("ops",),
    ("numpy",),
    ("linalg", "special"),
    ("transforms",),
    ("control",),
    ("lowering",),
    ("api",),
    (
        "lax",
        "random",
        "nn",
        "scipy",
        "optim",
        "implicit",
        "tree",
        "errors",
        "debug",
        "extend",
        "testing",
        "demo",
        "__main__",
    ),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
SEPARATE = {("linalg", "special"), ("special", "linalg")}  # of one rank, yet neither may import the other
APPLICATIONS = {"demo", "__main__"}  # use the public names, as any program would: `import funcgrad as fg`
COMPILERS = {"numba", "llvmlite"}


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name, and where the import stands."""

    target: str
    line: int
    in_function: bool
    for_types: bool  # under `if TYPE_CHECKING`


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    imports: tuple[Import, ...]

    @property
    def layer(self) -> str:
        """The name directly under the package; empty for the package itself."""
        return self.name.partition(".")[2].partition(".")[0]

    def at(self, line: int) -> str:
        return f"{self.path}:{line}"


def module_names(package: Path) -> dict[str, Path]:
    """Dotted name to file, of every module under `package`."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def import_nodes(
    node: ast.AST, in_function: bool = False, for_types: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Each import statement below `node`, with whether a function or `if TYPE_CHECKING` encloses it."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, in_function, for_types
    elif isinstance(node, ast.If) and is_type_checking(node.test):
        for statement in node.body:
            yield from import_nodes(statement, in_function, True)
        for statement in node.orelse:
            yield from import_nodes(statement, in_function, for_types)
    else:
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from import_nodes(child, in_function, for_types)


def targets(node: ast.Import | ast.ImportFrom, name: str, is_package: bool, known: set[str]) -> list[str]:
    """The absolute names of the modules that `node`, standing in module `name`, imports.

    `from a import b` imports a.b if that is a module of ours, else a.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    source = node.module or ""
    if node.level:
        parents = name.split(".")
        base = parents[: len(parents) - node.level + is_package]
        source = ".".join([*base, source] if source else base)
    submodules = [f"{source}.{alias.name}" for alias in node.names]
    return list(dict.fromkeys(sub if sub in known else source for sub in submodules))


def read_modules(package: Path) -> list[Module]:
    names = module_names(package)
    known = set(names)
    modules = []
    for name, path in names.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        imports = tuple(
            Import(target, node.lineno, in_function, for_types)
            for node, in_function, for_types in import_nodes(tree)
            for target in targets(node, name, path.name == "__init__.py", known)
        )
        modules.append(Module(name, path.relative_to(package.parent), imports))
    return modules


def is_ours(target: str) -> bool:
    return target.partition(".")[0] == "funcgrad"


def layer_violations(modules: list[Module]) -> list[str]:
    """Imports from a higher layer; modules that have no layer."""
    found = []
    for module in modules:
        if module.name == "funcgrad":
            continue
        if module.layer not in RANK:
            found.append(f"{module.path}: funcgrad.{module.layer} has no layer")
            continue
        for item in module.imports:
            if not is_ours(item.target):
                continue
            layer = item.target.partition(".")[2].partition(".")[0]
            if layer == "":
                allowed = module.layer in APPLICATIONS
            else:
                allowed = layer in RANK and RANK[layer] <= RANK[module.layer] and (module.layer, layer) not in SEPARATE
            if not allowed:
                found.append(f"{module.at(item.line)}: {module.layer} may not import {item.target}")
    return found


def hidden_imports(modules: list[Module]) -> list[str]:
    """Imports of funcgrad inside a function."""
    return [
        f"{module.at(item.line)}: {item.target} is imported inside a function"
        for module in modules
        for item in module.imports
        if item.in_function and is_ours(item.target)
    ]


def import_cycle(modules: list[Module]) -> list[str]:
    """A circle of modules that import each other when they are loaded, or an empty list.

    The package itself is left out: it imports everything, and only applications import it.
    """
    names = {module.name for module in modules} - {"funcgrad"}
    graph = {
        module.name: {
            item.target
            for item in module.imports
            if item.target in names and not item.in_function and not item.for_types
        }
        for module in modules
        if module.name in names
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]  # graphlib lists each module before the one that imports it
    return []


def eager_compilers(modules: list[Module]) -> list[str]:
    """Imports of numba or llvmlite that run when the module is loaded."""
    return [
        f"{module.at(item.line)}: {item.target} is imported at module level"
        for module in modules
        for item in module.imports
        if item.target.partition(".")[0] in COMPILERS and not item.in_function and not item.for_types
    ]


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    found = read_modules(PACKAGE)
    assert found, f"no modules under {PACKAGE}"
    return found


def test_imports_point_downward(modules: list[Module]) -> None:
    violations = layer_violations(modules)
    assert not violations, "\n".join(violations)


def test_no_import_of_funcgrad_inside_a_function(modules: list[Module]) -> None:
    violations = hidden_imports(modules)
    assert not violations, "\n".join(violations)


def test_no_import_cycle(modules: list[Module]) -> None:
    cycle = import_cycle(modules)
    assert not cycle, " → ".join(cycle)


def test_no_compiler_at_module_level(modules: list[Module]) -> None:
    violations = eager_compilers(modules)
    assert not violations, "\n".join(violations)


def test_import_loads_neither_compiler_nor_scipy() -> None:
    code = (
        "import sys, funcgrad\n"
        "print(*sorted({'numba', 'llvmlite', 'scipy'} & {name.partition('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


# The checks themselves, on small packages with one planted mistake each.


def planted(root: Path, files: dict[str, str]) -> list[Module]:
    package = root / "funcgrad"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_modules(package)


@pytest.mark.parametrize(
    ("file", "text", "target"),
    [
        ("core/ir.py", "import funcgrad.ops.reduce", "funcgrad.ops.reduce"),
        ("core/ir.py", "from funcgrad import ops", "funcgrad.ops"),
        ("core/ir.py", "from funcgrad.ops import reduce", "funcgrad.ops.reduce"),
        ("core/ir.py", "from funcgrad.ops.reduce import sum", "funcgrad.ops.reduce"),
        ("core/ir.py", "from ..ops import reduce", "funcgrad.ops.reduce"),
        ("core/ir.py", "from .. import ops", "funcgrad.ops"),
        ("core/__init__.py", "from ..ops.reduce import sum", "funcgrad.ops.reduce"),
        ("core/ir.py", "try:\n    from .. import ops\nexcept ImportError:\n    pass", "funcgrad.ops"),
        ("core/ir.py", "if TYPE_CHECKING:\n    from .. import ops", "funcgrad.ops"),
        ("core/ir.py", "import funcgrad as fg", "funcgrad"),
        ("linalg/qr.py", "from ..special import gamma", "funcgrad.special"),
        ("special.py", "from .linalg.qr import qr", "funcgrad.linalg.qr"),
        ("transforms/jvp.py", "from ..control import cond", "funcgrad.control"),
        ("lowering/cpu.py", "from .. import api", "funcgrad.api"),
        ("api.py", "from .lax import scan", "funcgrad.lax"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, file: str, text: str, target: str) -> None:
    files = {"ops/__init__.py": "", "ops/reduce.py": "", "linalg/__init__.py": "", "linalg/qr.py": ""}
    files |= {"special.py": "", "core/__init__.py": "", "api.py": ""}
    modules = planted(tmp_path, files | {file: text})
    layer = Path(file).parts[0].removesuffix(".py")
    (violation,) = layer_violations(modules)
    assert violation.endswith(f"{layer} may not import {target}")


def test_downward_imports_are_allowed(tmp_path: Path) -> None:
    modules = planted(
        tmp_path,
        {
            "__init__.py": "from . import api, lax",
            "core/ir.py": "import numpy as np\nfrom ..base import tree\nfrom . import printer",
            "core/printer.py": "",
            "base/tree.py": "import optree",
            "numpy/__init__.py": "",
            "transforms/jvp.py": "from ..linalg import qr\nfrom funcgrad import numpy as fnp",
            "api.py": "from funcgrad.lowering import cpu\nfrom .transforms.jvp import jvp",
            "lax.py": "from .api import jit",
            "__main__.py": "import funcgrad as fg",
        },
    )
    assert layer_violations(modules) == []
    assert import_cycle(modules) == []


def test_a_module_without_a_layer_is_found(tmp_path: Path) -> None:
    (violation,) = layer_violations(planted(tmp_path, {"helpers.py": ""}))
    assert "funcgrad.helpers has no layer" in violation


@pytest.mark.parametrize("text", ["from . import ir", "import funcgrad.core.ir", "from funcgrad import core"])
def test_an_import_inside_a_function_is_found(tmp_path: Path, text: str) -> None:
    body = f"class A:\n    def f(self):\n        if self:\n            {text}\n"
    modules = planted(tmp_path, {"core/__init__.py": "", "core/ir.py": "", "core/trace.py": body})
    assert len(hidden_imports(modules)) == 1


def test_a_cycle_is_found(tmp_path: Path) -> None:
    modules = planted(
        tmp_path,
        {
            "core/__init__.py": "from .ir import Program",
            "core/ir.py": "from . import trace",
            "core/trace.py": "from .check import check",
            "core/check.py": "from funcgrad.core.ir import Program",
        },
    )
    cycle = import_cycle(modules)
    assert set(cycle) == {"funcgrad.core.ir", "funcgrad.core.trace", "funcgrad.core.check"}
    assert cycle[cycle.index("funcgrad.core.ir") + 1 :][:1] in (["funcgrad.core.trace"], [])


def test_a_cycle_through_the_package_of_a_module_is_found(tmp_path: Path) -> None:
    files = {"core/__init__.py": "from .ir import Program", "core/ir.py": "from . import Trace"}
    assert set(import_cycle(planted(tmp_path, files))) == {"funcgrad.core", "funcgrad.core.ir"}


@pytest.mark.parametrize("text", ["import numba", "from llvmlite import binding", "class A:\n    import numba"])
def test_a_compiler_at_module_level_is_found(tmp_path: Path, text: str) -> None:
    assert len(eager_compilers(planted(tmp_path, {"lowering/cpu.py": text}))) == 1


def test_a_compiler_inside_a_function_or_for_types_is_allowed(tmp_path: Path) -> None:
    text = "if TYPE_CHECKING:\n    import numba\ndef f():\n    import llvmlite.binding\n"
    assert eager_compilers(planted(tmp_path, {"lowering/cpu.py": text})) == []
