"""What is mutated: the functions behind the slots of every primitive, found in their source."""

from __future__ import annotations

import ast
import functools
import hashlib
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from funcgrad.core.primitive import registry
from tests.mutation.operators import Function

SLOTS = ("jvp", "transpose", "batch", "split", "unfold", "links")
RULES = ("funcgrad.ops.", "funcgrad.control.")
TRANSFORMS = ("jvp", "split", "transpose", "mask", "zeros", "batch", "prune")
MARK = "__mutation_hit__"

Key = tuple[str, int, str]  # file, line, and name of a function: where its source is


@dataclass
class Target:
    """A function in the source, and the function objects made of it (one for each time its definition ran)."""

    key: Key
    node: Function
    functions: list[types.FunctionType] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)  # where it is reached from

    @functools.cached_property
    def name(self) -> str:
        """File, name, and a digest of the source: the same as long as the function is."""
        digest = hashlib.sha256(ast.unparse(self.node).encode()).hexdigest()[:8]
        return f"{self.key[0]}:{self.key[2]}#{digest}"


def slot_function(name: str, slot: str) -> Any:
    """The function in a slot, or None."""
    f = getattr(registry[name], slot)
    return None if f is None or getattr(f, "missing", False) else f


def filled() -> list[tuple[str, str]]:
    """Every filled slot: primitive and slot."""
    return [(name, slot) for name in registry for slot in SLOTS if slot_function(name, slot) is not None]


def refuses(name: str, slot: str) -> bool:
    """Whether a rule does nothing but raise: it returns nothing that could be wrong."""
    return slot_function(name, slot).__annotations__.get("return") == "NoReturn"


# -- where the source of a function is


@functools.cache
def _functions_in(file: str) -> list[Function]:
    with open(file, encoding="utf-8") as f:
        tree = ast.parse(f.read())
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]


def _span(code: types.CodeType) -> tuple[Any, ...]:
    """From where to where the instructions of a lambda are."""
    found = [(a, c, b, d) for a, b, c, d in code.co_positions() if None not in (a, b, c, d)][1:]
    spans = [(a, c, b, d) for a, c, b, d in found if (a, c) != (b, d)]
    return min((a, c) for a, c, _, _ in spans), max((b, d) for _, _, b, d in spans)


def node_of(code: types.CodeType) -> Function | None:
    """The syntax tree of a function."""
    if not code.co_filename.endswith(".py"):
        return None
    for n in _functions_in(code.co_filename):
        if isinstance(n, ast.FunctionDef):
            first = n.decorator_list[0].lineno if n.decorator_list else n.lineno
            if n.name == code.co_name and first == code.co_firstlineno:
                return n
        elif code.co_name == "<lambda>" and n.lineno == code.co_firstlineno:
            start, end = _span(code)
            b = n.body
            if (b.lineno, b.col_offset) <= start and end <= (b.end_lineno, b.end_col_offset + 1):
                arguments = [a.arg for a in (*n.args.posonlyargs, *n.args.args)]
                if arguments == list(code.co_varnames[: code.co_argcount]):
                    return n
    return None


# -- from a slot to the functions behind it


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _names(c)


def _held(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, tuple | list):
        for v in value:
            yield from _held(v)


def _public() -> set[int]:
    """What applies a primitive is no rule."""
    return {id(getattr(op, "function", None)) for op in registry.values()}


def behind(f: types.FunctionType) -> Iterator[types.FunctionType]:
    """`f`, what it closes over, and the helpers of the rules that it calls, and they."""
    public, seen, todo = _public(), set(), [f]
    while todo:
        f = todo.pop()
        if id(f) in seen or not f.__module__.startswith(RULES):
            continue
        if f.__module__ == "funcgrad.ops.op" and "<locals>" not in f.__qualname__:
            continue  # how any op is applied
        seen.add(id(f))
        yield f
        for cell in f.__closure__ or ():
            todo += _held(cell.cell_contents)
        for name in _names(f.__code__):
            g = f.__globals__.get(name)
            if isinstance(g, types.FunctionType) and id(g) not in public:
                todo.append(g)


def _key(code: types.CodeType) -> Key:
    return code.co_filename.rpartition("funcgrad/")[2], code.co_firstlineno, code.co_qualname


def targets() -> dict[Key, Target]:
    """Every function behind a slot, by where it is."""
    found: dict[Key, Target] = {}
    for name, slot in filled():
        for f in behind(slot_function(name, slot)):
            node = node_of(f.__code__)
            if node is None:
                continue
            key = (*_key(f.__code__)[:2], f"{f.__code__.co_qualname}:{getattr(node, 'col_offset', 0)}")
            target = found.setdefault(key, Target(key, node))
            if not any(g is f for g in target.functions):
                target.functions.append(f)
            where = f"{name}.{slot}"
            if where not in target.slots:
                target.slots.append(where)
    return found


def transform_targets() -> dict[Key, Target]:
    """The functions of the transforms themselves."""
    import importlib

    found = {}
    for name in TRANSFORMS:
        module = importlib.import_module(f"funcgrad.transforms.{name}")
        for f in vars(module).values():
            functions = [f] if isinstance(f, types.FunctionType) else []
            if isinstance(f, type):
                functions = [g for g in vars(f).values() if isinstance(g, types.FunctionType)]
            for g in functions:
                node = node_of(g.__code__) if g.__code__.co_filename == module.__file__ else None
                if node is not None:
                    key = (*_key(g.__code__)[:2], f"{g.__code__.co_qualname}:{node.col_offset}")
                    found[key] = Target(key, node, [g], [f"transforms.{name}"])
    return found


# -- putting other code in a function


def compiled(target: Target, node: Any) -> types.CodeType:
    """The code of `node` in place of that of a target."""
    code = target.functions[0].__code__
    free = code.co_freevars
    if isinstance(node, ast.Lambda):
        if free:
            names = ast.Tuple([ast.Name(v, ast.Load()) for v in free], ast.Load())
            pair = ast.Tuple([node.body, names], ast.Load())
            node = ast.Lambda(node.args, ast.Subscript(pair, ast.Constant(0), ast.Load()))
        definition: ast.stmt = ast.Expr(node)
    else:
        use = [ast.Expr(ast.Name(v, ast.Load())) for v in free]
        body = [ast.If(ast.Constant(False), use, []), *node.body] if use else node.body
        definition = ast.FunctionDef(node.name, node.args, body, [], None)
    arguments = ast.arguments([], [ast.arg(v) for v in free], None, [], [], None, [])
    outside: list[ast.stmt] = [ast.Global([code.co_name])] if code.co_name.isidentifier() else []  # it may call itself
    outer = ast.FunctionDef("outer", arguments, [*outside, definition], [], None)
    module = ast.fix_missing_locations(ast.copy_location(ast.Module([outer], []), node))
    flags = __import__("__future__").annotations.compiler_flag
    made = compile(module, code.co_filename, "exec", flags, dont_inherit=True)
    around = next(c for c in made.co_consts if isinstance(c, types.CodeType))
    inside = next(c for c in around.co_consts if isinstance(c, types.CodeType) and c.co_name == code.co_name)
    return inside.replace(co_qualname=code.co_qualname)


def install(target: Target, node: Any) -> None:
    """From now on the functions of a target do what `node` says."""
    code = compiled(target, node)
    for f in target.functions:
        f.__code__ = code


def instrument(target: Target, hits: set[Any]) -> None:
    """The functions of a target, compiled anew, report to `hits` that they were called."""
    call = ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(target.name)], [])
    node = target.node
    if isinstance(node, ast.Lambda):
        both = ast.Tuple([call, node.body], ast.Load())
        new: Any = ast.Lambda(node.args, ast.Subscript(both, ast.Constant(1), ast.Load()))
    else:
        new = ast.FunctionDef(node.name, node.args, [ast.Expr(call), *node.body], [], None)
    install(target, ast.copy_location(new, node))
    for f in target.functions:
        f.__globals__[MARK] = hits.add
