"""Typed emission of LLVM IR text for straight-line code on vectors of one lane count.

A `Builder` appends one line of text per operation and hands out a `Value`: the text of an operand with its type.
Operands are checked where they are used, so a mistake is a Python error at the line that made it and never malformed
IR: the compiler's assertions are on, and it would end the process. Nothing here imports a compiler.

    b = Builder(Target(vector_bytes=64, fma=True), lanes=8)
    x = b.value("%x", b.f64)                    # a <8 x double> that exists already
    y = b.fma(x, x, 1.0)                        # Python numbers are constants of their neighbour's type
    b.lines                                     # ["  %v1 = call <8 x double> @llvm.fma.v8f64(..., ...)"]

Rare cases leave the straight line through one door: `detour` calls an outlined function if any lane asks for it.
Scalar code jumps over what is known already: `unless`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from funcgrad.lowering.values import Function, Number, Operand, Shared, Target, Type, Value, constant, make_type

T = TypeVar("T")
_tuple = tuple.__new__  # a NamedTuple's own constructor is a Python function: twice the time


COMPARES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
SIGNED = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


class Builder:
    """Emits instructions into `lines`, and hands out their results.

    Parameters
    ----------
    target
        What the CPU can do.
    lanes
        Lane count of the types `f64`, `f32`, `i64`, `i32`, `i1`; 1 for scalars.
    shared
        Declarations and helpers of the module; default: a fresh one.
    block
        Label of the basic block that the first line falls into.

    Notes
    -----
    Comparisons are ordered (false for NaN), `ne` is true for NaN. Integers compare signed. Results are exactly IEEE:
    no fast-math flag is ever written.
    """

    def __init__(self, target: Target, lanes: int, shared: Shared | None = None, block: str = "entry") -> None:
        self.target = target
        self.lanes = lanes
        self.shared = shared if shared is not None else Shared()
        self.block = block
        self.lines: list[str] = []
        self.count = 0
        self.intrinsics: set[str] = set()  # declared by this builder
        self.memo: dict[Any, Any] = {}  # see `once`
        self.f64, self.f32, self.i64, self.i32, self.i1 = (
            make_type(e, lanes) for e in ("double", "float", "i64", "i32", "i1")
        )

    # -- values

    def once(self, key: str, x: Value, make: Callable[[], T]) -> T:
        """What `make` emits for `x`, emitted once: functions that share steps share them here.

        Whoever emits a block that does not always run keeps a copy of `memo`, and puts it back behind the block.
        """
        found: T | None = self.memo.get((key, x))
        if found is None:
            found = self.memo[key, x] = make()
        return found

    def value(self, text: str, type: Type) -> Value:
        """An operand that exists already, such as a parameter or a loaded vector."""
        return Value(text, type)

    def constant(self, type: Type, value: Number) -> Value:
        """A constant in every lane; a float is rounded to the type, an integer must fit its bits."""
        key = type, value or str(value)  # -0.0 == 0.0, and they hash alike: the text tells them apart
        found = self.shared.constants.get(key)
        if found is None:
            found = self.shared.constants[key] = constant(type, value)
        return found

    def emit(self, type: Type, text: str) -> Value:
        """Any instruction, unchecked: the operations below check their operands."""
        self.count = n = self.count + 1
        name = f"%v{n}"
        self.lines.append(f"  {name} = {text}")
        return _tuple(Value, (name, type))

    def _pair(self, x: Operand, y: Operand) -> tuple[Value, Value]:
        if type(x) is not Value:
            if type(y) is not Value:
                raise TypeError("one operand at least must be a value: two numbers have no type")
            x = self.constant(y.type, x)
        elif type(y) is not Value:
            y = self.constant(x.type, y)
        if x.type is not y.type:
            raise TypeError(f"operands have different types: {x.type} and {y.type}")
        return x, y

    def _float(self, op: str, x: Operand, y: Operand) -> Value:
        if type(x) is not Value or type(y) is not Value or x[1] is not y[1]:
            x, y = self._pair(x, y)
        t = x[1]
        if not t.is_float:
            raise TypeError(f"{op}: operands are {t}, not floats")
        self.count = n = self.count + 1
        name = f"%v{n}"
        self.lines.append(f"  {name} = {op} {t.text} {x[0]}, {y[0]}")
        return _tuple(Value, (name, t))

    def _int(self, op: str, x: Operand, y: Operand) -> Value:
        if type(x) is not Value or type(y) is not Value or x[1] is not y[1]:
            x, y = self._pair(x, y)
        t = x[1]
        if t.is_float:
            raise TypeError(f"{op}: operands are {t}, not integers")
        self.count = n = self.count + 1
        name = f"%v{n}"
        self.lines.append(f"  {name} = {op} {t.text} {x[0]}, {y[0]}")
        return _tuple(Value, (name, t))

    def intrinsic(self, name: str, *args: Value) -> Value:
        """Call ``llvm.<name>`` on operands of one type, with a result of that type."""
        t = args[0].type
        if any([a.type is not t for a in args]):
            raise TypeError(f"llvm.{name}: operands have different types: {', '.join(str(a.type) for a in args)}")
        full = f"@llvm.{name}.{t.suffix}"
        if full not in self.intrinsics:
            self._declare(full, t, len(args))
        return self.emit(t, f"call {t.text} {full}({', '.join([f'{t.text} {a.text}' for a in args])})")

    def _declare(self, name: str, type: Type, arity: int) -> None:
        self.intrinsics.add(name)
        self.shared.declares[f"declare {type.text} {name}({', '.join([type.text] * arity)})"] = None

    def _float_intrinsic(self, name: str, x: Value) -> Value:
        if type(x) is not Value or not x.type.is_float:
            raise TypeError(f"{name}: operand {x!r} is not a float value")
        return self.intrinsic(name, x)

    # -- floats

    def add(self, x: Operand, y: Operand) -> Value:
        """x + y."""
        return self._float("fadd", x, y)

    def sub(self, x: Operand, y: Operand) -> Value:
        """x − y."""
        return self._float("fsub", x, y)

    def mul(self, x: Operand, y: Operand) -> Value:
        """x · y."""
        return self._float("fmul", x, y)

    def div(self, x: Operand, y: Operand) -> Value:
        """x / y."""
        return self._float("fdiv", x, y)

    def fma(self, x: Operand, y: Operand, z: Operand) -> Value:
        """x · y + z, with one rounding if the target has the instruction, else with two."""
        if not self.target.fma:
            return self._float("fadd", self._float("fmul", x, y), z)
        x, y = self._pair(x, y)
        _, z = self._pair(x, z)
        t = x[1]
        if not t.is_float:
            raise TypeError(f"fma: operands are {t}, not floats")
        if t.fma not in self.intrinsics:
            self._declare(t.fma, t, 3)
        a = t.text
        return self.emit(t, f"call {a} {t.fma}({a} {x[0]}, {a} {y[0]}, {a} {z[0]})")

    def neg(self, x: Value) -> Value:
        """−x: flips the sign bit."""
        if not x.type.is_float:
            raise TypeError(f"neg: operand {x!r} is not a float value")
        return self.emit(x.type, f"fneg {x.type.text} {x.text}")

    def abs(self, x: Value) -> Value:
        """|x|: clears the sign bit."""
        return self._float_intrinsic("fabs", x)

    def sqrt(self, x: Value) -> Value:
        """The square root, correctly rounded."""
        return self._float_intrinsic("sqrt", x)

    def copysign(self, x: Operand, sign: Operand) -> Value:
        """|x| with the sign bit of `sign`."""
        x, sign = self._pair(x, sign)
        if not x.type.is_float:
            raise TypeError(f"copysign: operands are {x.type}, not floats")
        return self.intrinsic("copysign", x, sign)

    def floor(self, x: Value) -> Value:
        """The largest integer not above x."""
        if self.target.rounding:
            return self._float_intrinsic("floor", x)
        near = self.rint(x)
        return self.copysign(self.select(self.gt(near, x), self.sub(near, 1.0), near), x)

    def rint(self, x: Value) -> Value:
        """The nearest integer, ties to even."""
        if self.target.rounding:
            return self._float_intrinsic("rint", x)
        # no instruction: LLVM would call libm for each lane. Adding 2^52 drops the fraction bits of a smaller |x|.
        big = 2.0 ** (52 if x.type.bits == 64 else 23)
        a = self.abs(x)
        near = self.copysign(self.sub(self.add(a, big), big), x)
        return self.select(self.lt(a, big), near, x)

    def min(self, x: Operand, y: Operand) -> Value:
        """x if x < y, else y: y where either is NaN. One instruction on x86."""
        x, y = self._pair(x, y)
        return self.select(self.lt(x, y), x, y)

    def max(self, x: Operand, y: Operand) -> Value:
        """x if x > y, else y: y where either is NaN. One instruction on x86."""
        x, y = self._pair(x, y)
        return self.select(self.gt(x, y), x, y)

    # -- comparisons and selection

    def compare(self, op: str, x: Operand, y: Operand) -> Value:
        """``eq ne lt le gt ge`` of floats (ordered; `ne` unordered) or signed integers."""
        x, y = self._pair(x, y)
        t = x.type
        text = f"fcmp {COMPARES[op]}" if t.is_float else f"icmp {SIGNED[op]}"
        return self.emit(make_type("i1", t.lanes), f"{text} {t.text} {x.text}, {y.text}")

    def eq(self, x: Operand, y: Operand) -> Value:
        """x = y."""
        return self.compare("eq", x, y)

    def ne(self, x: Operand, y: Operand) -> Value:
        """x ≠ y; true where either is NaN."""
        return self.compare("ne", x, y)

    def lt(self, x: Operand, y: Operand) -> Value:
        """x < y."""
        return self.compare("lt", x, y)

    def le(self, x: Operand, y: Operand) -> Value:
        """x ≤ y."""
        return self.compare("le", x, y)

    def gt(self, x: Operand, y: Operand) -> Value:
        """x > y."""
        return self.compare("gt", x, y)

    def ge(self, x: Operand, y: Operand) -> Value:
        """x ≥ y."""
        return self.compare("ge", x, y)

    def isnan(self, x: Value) -> Value:
        """x is NaN."""
        return self.unordered(x, x)

    def unordered(self, x: Operand, y: Operand) -> Value:
        """x or y is NaN."""
        x, y = self._pair(x, y)
        t = x.type
        if not t.is_float:
            raise TypeError(f"unordered: operands are {t}, not floats")
        return self.emit(make_type("i1", t.lanes), f"fcmp uno {t.text} {x.text}, {y.text}")

    def select(self, condition: Value, x: Operand, y: Operand) -> Value:
        """x where `condition` holds, else y."""
        x, y = self._pair(x, y)
        c, t = condition.type, x.type
        if c.element != "i1" or c.lanes != t.lanes:
            raise TypeError(f"select: condition is {c}, values are {t}")
        return self.emit(t, f"select {c.text} {condition.text}, {t.text} {x.text}, {t.text} {y.text}")

    # -- integers and bits

    def iadd(self, x: Operand, y: Operand) -> Value:
        """x + y, wrapping."""
        return self._int("add", x, y)

    def isub(self, x: Operand, y: Operand) -> Value:
        """x − y, wrapping."""
        return self._int("sub", x, y)

    def imul(self, x: Operand, y: Operand) -> Value:
        """x · y, wrapping."""
        return self._int("mul", x, y)

    def and_(self, x: Operand, y: Operand) -> Value:
        """Bitwise and; of conditions: both."""
        return self._int("and", x, y)

    def or_(self, x: Operand, y: Operand) -> Value:
        """Bitwise or; of conditions: either."""
        return self._int("or", x, y)

    def xor(self, x: Operand, y: Operand) -> Value:
        """Bitwise exclusive or; of conditions: one of them."""
        return self._int("xor", x, y)

    def not_(self, x: Value) -> Value:
        """All bits flipped."""
        return self._int("xor", x, 1 if x.type.bits == 1 else -1)

    def shl(self, x: Value, y: Operand) -> Value:
        """x · 2^y, wrapping."""
        return self._int("shl", x, y)

    def lshr(self, x: Value, y: Operand) -> Value:
        """x shifted right by y, zeros coming in."""
        return self._int("lshr", x, y)

    def ashr(self, x: Value, y: Operand) -> Value:
        """x shifted right by y, the sign coming in. Of 64-bit lanes it is slow without AVX-512."""
        return self._int("ashr", x, y)

    # -- conversions

    def bits(self, x: Value) -> Value:
        """The bits of a float, as an integer."""
        if not x.type.is_float:
            raise TypeError(f"bits: operand {x!r} is not a float value")
        to = x.type.with_element(f"i{x.type.bits}")
        return self.emit(to, f"bitcast {x.type.text} {x.text} to {to.text}")

    def from_bits(self, x: Value) -> Value:
        """The float of these bits."""
        element = {64: "double", 32: "float"}.get(x.type.bits)
        if x.type.is_float or element is None:
            raise TypeError(f"from_bits: operand {x!r} is not i64 or i32")
        to = x.type.with_element(element)
        return self.emit(to, f"bitcast {x.type.text} {x.text} to {to.text}")

    def convert(self, x: Value, to: Type) -> Value:
        """x as another element type: floats round to nearest, floats to integers toward zero (in range only).

        Integers are signed, except i1, which is 0 or 1.
        """
        t = x.type
        if t.lanes != to.lanes:
            raise TypeError(f"convert: {t} to {to}")
        if t is to:
            return x
        if t.is_float and to.is_float:
            op = "fpext" if to.bits > t.bits else "fptrunc"
        elif t.is_float:
            op = "fptosi"
        elif to.is_float:
            op = "uitofp" if t.bits == 1 else "sitofp"
        else:
            op = "trunc" if to.bits < t.bits else "zext" if t.bits == 1 else "sext"
        return self.emit(to, f"{op} {t.text} {x.text} to {to.text}")

    # -- leaving the straight line

    def any(self, condition: Value) -> Value:
        """Whether a condition holds in any lane: a scalar i1."""
        t = condition.type
        if t.element != "i1":
            raise TypeError(f"any: operand {condition!r} is not a condition")
        if t.lanes == 1:
            return condition
        word = make_type(f"i{t.lanes}")
        packed = self.emit(word, f"bitcast {t.text} {condition.text} to {word.text}")
        return self.emit(make_type("i1"), f"icmp ne {word.text} {packed.text}, 0")

    def need_function(
        self, name: str, params: Sequence[Type], results: Sequence[Type], text: Callable[[], str]
    ) -> None:
        """Put a helper function into the module, once for each name.

        `text` is called the first time only; it defines ``@name`` with these types (and may define constants).
        """
        if name not in self.shared.functions:
            function = self.shared.functions[name] = Function(tuple(params), tuple(results))
            function.text = text()

    def call(self, name: str, *args: Value, cold: bool = False) -> list[Value]:
        """The results of a helper function that `need_function` knows."""
        function = self.shared.functions[name]
        if tuple([a.type for a in args]) != function.params:
            raise TypeError(f"{name}: takes {function.params}, not {tuple([a.type for a in args])}")
        operands = ", ".join([f"{a.type.text} {a.text}" for a in args])
        result = function.result
        self.count = n = self.count + 1
        whole = f"%v{n}"
        self.lines.append(f"  {whole} = call {result} @{name}({operands}){' cold' if cold else ''}")
        if len(function.results) == 1:
            return [Value(whole, function.results[0])]
        return [self.emit(t, f"extractvalue {result} {whole}, {i}") for i, t in enumerate(function.results)]

    def detour(self, condition: Value, name: str, args: Sequence[Value], usual: Sequence[Value]) -> list[Value]:
        """The values `usual`, or, if `condition` holds in any lane, the results of the helper `name` for `args`.

        The call is marked cold; the code continues in a new basic block, `block`.
        """
        if tuple([v.type for v in usual]) != self.shared.functions[name].results:
            raise TypeError(f"{name}: returns {self.shared.functions[name].results}, not {[v.type for v in usual]}")
        taken = self.any(condition)
        here = self.block
        self.count = n = self.count + 1
        rare, on = f"rare{n}", f"on{n}"
        self.lines += [f"  br i1 {taken.text}, label %{rare}, label %{on}", f"{rare}:"]
        found = self.call(name, *args, cold=True)
        self.lines += [f"  br label %{on}", f"{on}:"]
        self.block = on
        return [
            self.emit(v.type, f"phi {v.type.text} [ {v.text}, %{here} ], [ {other.text}, %{rare} ]")
            for v, other in zip(usual, found, strict=True)
        ]

    def unless(self, condition: Value, known: Sequence[Value], make: Callable[[], Sequence[Value]]) -> list[Value]:
        """What `make` emits; where `condition` holds, that must be the bits of `known`.

        Scalar code jumps over `make` there: if the processor foresees the jump, what follows waits for `known` alone.
        Vectors compute all lanes. Scalar code continues in a new basic block, `block`.
        """
        if condition.type.lanes > 1:
            return list(make())
        here, memo = self.block, dict(self.memo)
        self.count = n = self.count + 1
        self.block = f"else{n}"
        self.lines += [f"  br i1 {condition.text}, label %known{n}, label %else{n}", f"else{n}:"]
        made = make()
        if [v.type for v in made] != [v.type for v in known]:
            raise TypeError(f"unless: {made} in place of {known}")
        there, self.block, self.memo = self.block, f"known{n}", memo
        self.lines += [f"  br label %known{n}", f"known{n}:"]
        return [
            self.emit(x.type, f"phi {x.type.text} [ {x.text}, %{here} ], [ {y.text}, %{there} ]")
            for x, y in zip(known, made, strict=True)
        ]

    def inner(self, lanes: int | None = None) -> Builder:
        """A builder for the body of a helper function of the same module."""
        return Builder(self.target, lanes or self.lanes, self.shared)
