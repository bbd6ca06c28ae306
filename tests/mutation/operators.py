"""Small faults, made in the source of a function: what one slip of the pen does to a rule.

`mutants(node)` gives every copy of a function's syntax tree with one such fault, and says in words what it is.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Function = ast.FunctionDef | ast.Lambda
Change = tuple[str, ast.AST | None]  # what it is, and what stands there instead (None: nothing)

OTHER_CALL = {
    "add": "sub", "sub": "add", "mul": "add", "div": "mul", "accumulate": "sub", "any": "all", "all": "any",
    "min": "max", "max": "min", "maximum": "minimum", "minimum": "maximum", "eq": "ne", "ne": "eq", "lt": "gt",
    "le": "lt", "gt": "le", "ge": "gt", "sin": "cos", "cos": "sin", "sinh": "cosh", "cosh": "sinh", "exp": "log",
    "log": "exp", "square": "sqrt", "sqrt": "square", "mask_mul": "mul",
}  # fmt: skip
COMMUTATIVE = {"add", "mul", "accumulate", "eq", "ne", "maximum", "minimum", "max", "min", "hypot", "logaddexp",
               "logaddexp2", "mask_both", "both", "logical_and", "logical_or"}  # fmt: skip
NOT_SWAPPED = {"zip", "isinstance", "getattr", "enumerate", "range"}
ONE_OPERAND = {"neg", "square", "sqrt", "reciprocal", "convert", "stop_gradient", "abs", "sign", "not_", "logical_not",
               "reversed", "set", "sin", "cos", "exp", "log", "transpose", "cumsum", "flip",
               "one_minus_square"}  # fmt: skip
OTHER_OPERATOR: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.MatMult: ast.Mult,
}  # fmt: skip
OTHER_COMPARISON: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Mutant:
    """One fault: the line, what the line said there, what it says now; and what makes the whole function with it."""

    line: int
    before: str
    after: str
    make: Callable[[], Any]

    @property
    def node(self) -> Any:
        """The function with the fault."""
        return self.make()

    @property
    def text(self) -> str:
        """The fault in words."""
        return f"{self.before}  →  {self.after}"


def _text(node: ast.AST | None) -> str:
    return "(nothing)" if node is None or isinstance(node, ast.Pass) else ast.unparse(node)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _without(items: list[Any], k: int) -> list[Any]:
    return items[:k] + items[k + 1 :]


def _swapped(items: list[Any], k: int) -> list[Any]:
    return [*items[:k], items[k + 1], items[k], *items[k + 2 :]]


def _of_call(node: ast.Call, known: Callable[[str], bool]) -> Iterator[ast.AST]:
    name, args = _name(node.func), node.args
    call = lambda func, args: ast.Call(func, args, node.keywords)
    if name in OTHER_CALL and known(OTHER_CALL[name]):
        yield call(ast.Name(OTHER_CALL[name], ast.Load()), args)
    if name in ("add", "sub", "mul", "div", "accumulate", "mask_mul", "mask_div", "pow", "dot") and len(args) == 2:
        yield args[0]
        yield args[1]
    if name in ONE_OPERAND and args and not isinstance(args[0], ast.Starred):
        yield args[0]
    if name in NOT_SWAPPED or name in COMMUTATIVE:
        return
    for k in range(len(args) - 1):
        if _text(args[k]) != _text(args[k + 1]):
            yield call(node.func, _swapped(args, k))
    for k, a in enumerate(args):
        if isinstance(a, ast.Starred):
            yield call(node.func, _without(args, k))


def _of_constant(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        if value > 0:
            yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value + 1.0)


def _of_sequence(node: ast.Tuple | ast.List) -> Iterator[ast.AST]:
    make = lambda items: type(node)(items, node.ctx)
    if not isinstance(node.ctx, ast.Load):
        return
    first = node.elts[0] if node.elts else None
    key = isinstance(first, ast.Constant) and isinstance(first.value, str)  # a label and what belongs to it, or names
    for k in range(len(node.elts) - 1):
        if _text(node.elts[k]) != _text(node.elts[k + 1]) and not key:
            yield make(_swapped(node.elts, k))
    for k in range(key, len(node.elts)):
        yield make(_without(node.elts, k))


def _of_binary(node: ast.BinOp) -> Iterator[ast.AST]:
    other = OTHER_OPERATOR.get(type(node.op))
    if other is not None:
        yield ast.BinOp(node.left, other(), node.right)
    yield node.left
    yield node.right


def _of_compare(node: ast.Compare) -> Iterator[ast.AST]:
    other = OTHER_COMPARISON[type(node.ops[0])]
    yield ast.Compare(node.left, [other(), *node.ops[1:]], node.comparators)
    if isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        back = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}[type(node.ops[0])]
        yield ast.Compare(node.left, [back(), *node.ops[1:]], node.comparators)


def _of_boolean(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    for k in range(len(node.values)):
        rest = _without(node.values, k)
        yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _of_unary(node: ast.UnaryOp) -> Iterator[ast.AST]:
    yield node.operand


def _of_choice(node: ast.IfExp) -> Iterator[ast.AST]:
    wanted = "isinstance(" in _text(node.test) and "Linear" in _text(node.test) and _text(node.orelse) == "None"
    if not wanted:  # a cotangent that nobody asked for is no fault: `transforms.transpose` drops it
        yield node.body
    yield node.orelse
    yield ast.IfExp(node.test, node.orelse, node.body)


def _of_if(node: ast.If) -> Iterator[ast.AST]:
    yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    yield ast.If(ast.Constant(False), node.body, node.orelse)


def _of_comprehension(node: Any) -> Iterator[ast.AST]:
    for k, g in enumerate(node.generators):
        if g.ifs:
            plain = copy.copy(node)
            bare = ast.comprehension(g.target, g.iter, [], g.is_async)
            plain.generators = [*node.generators[:k], bare, *node.generators[k + 1 :]]
            yield plain


def _of_subscript(node: ast.Subscript) -> Iterator[ast.AST]:
    if isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load):
        s = node.slice
        yield node.value
        if s.lower is not None and s.upper is not None:
            yield ast.Subscript(node.value, ast.Slice(None, s.upper, s.step), node.ctx)
            yield ast.Subscript(node.value, ast.Slice(s.lower, None, s.step), node.ctx)
        elif s.lower is not None:
            yield ast.Subscript(node.value, ast.Slice(None, s.lower, s.step), node.ctx)
        elif s.upper is not None:
            yield ast.Subscript(node.value, ast.Slice(s.upper, None, s.step), node.ctx)


def _of_statement(node: ast.stmt) -> Iterator[ast.AST]:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield ast.Pass()


def _of_augmented(node: ast.AugAssign) -> Iterator[ast.AST]:
    other = OTHER_OPERATOR.get(type(node.op))
    if other is not None:
        yield ast.AugAssign(node.target, other(), node.value)
    yield ast.Pass()


def _changes(node: ast.AST, known: Callable[[str], bool]) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
    if isinstance(node, ast.Call):
        yield from _of_call(node, known)
    for kind, change in CHANGES.items():
        if isinstance(node, kind):
            yield from change(node)


CHANGES: dict[Any, Callable[[Any], Iterator[ast.AST]]] = {
    ast.Constant: _of_constant,
    ast.Tuple: _of_sequence,
    ast.List: _of_sequence,
    ast.BinOp: _of_binary,
    ast.Compare: _of_compare,
    ast.BoolOp: _of_boolean,
    ast.UnaryOp: _of_unary,
    ast.IfExp: _of_choice,
    ast.If: _of_if,
    ast.ListComp: _of_comprehension,
    ast.GeneratorExp: _of_comprehension,
    ast.SetComp: _of_comprehension,
    ast.DictComp: _of_comprehension,
    ast.Subscript: _of_subscript,
    ast.Expr: _of_statement,
    ast.Continue: _of_statement,
    ast.AugAssign: _of_augmented,
}


def _sites(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes where a fault may be put: not in messages, docstrings, signatures and types."""
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.FunctionDef | ast.Lambda) and name != "body":
            continue
        if name in ("annotation", "returns", "decorator_list") or (
            isinstance(node, ast.keyword) and node.arg == "strict"
        ):
            continue  # types are not computed with, and a check of lengths is none of what a rule says
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                if not (isinstance(child, ast.Slice | ast.Tuple) and isinstance(node, ast.Subscript)):
                    yield child
                yield from _sites(child)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old = old
        self.new = new

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().generic_visit(node)

    visit_Constant = generic_visit  # noqa: N815 - the name is the visitor's


def replaced(root: Any, old: ast.AST, new: ast.AST) -> Any:
    """A copy of the tree with another node in one place."""
    memo: dict[int, Any] = {}
    tree = copy.deepcopy(root, memo)
    there = memo[id(old)]
    new = ast.copy_location(copy.deepcopy(new), there)
    return ast.fix_missing_locations(_Replace(there, new).visit(tree))


def mutants(node: Function, known: Callable[[str], bool] = lambda name: False) -> Iterator[Mutant]:
    """All functions with one fault; `known` says which names of functions can be used where the function stands."""
    seen = set()
    for site in _sites(node):
        for new in _changes(site, known):
            before, after = _text(site), _text(new)
            if isinstance(site, ast.If):
                before, after = [("if " + _text(n.test)) for n in (site, new)]
            key = (getattr(site, "lineno", 0), getattr(site, "col_offset", 0), before, after)
            if before != after and key not in seen:
                seen.add(key)
                make = lambda site=site, new=new: replaced(node, site, new)
                yield Mutant(getattr(site, "lineno", 0), before, after, make)
