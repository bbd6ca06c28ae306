"""jit: a function traced once per kind of argument, then run as one operation.

The key of a specialisation: tree structure, shapes, dtypes and weakness of the traced arguments, and type and
value of the static ones. Arrays that the function captures are frozen when it is traced.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from funcgrad.api.inspect import STAGES, abstract_leaf, stage_text
from funcgrad.api.native import inputs_of, native_entry
from funcgrad.api.numba_code import numba_handle
from funcgrad.api.placement import device_name, taken, to_host
from funcgrad.api.tracing import (
    Traced,
    boundary,
    function_name,
    leaf,
    leaf_names,
    output_leaves,
    require_callable,
    results,
    shown,
    trace,
    value_and_aval,
)
from funcgrad.base import tree
from funcgrad.base.dtypes import BOOL
from funcgrad.base.errors import ArgumentError, ParameterError, StaticArgumentError, UnsupportedError, printed
from funcgrad.base.shelter import lock
from funcgrad.control.call import call
from funcgrad.core.array import Array, native_switch
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.evaluate import execute
from funcgrad.core.ir import Aval, Program, make_aval, static_key
from funcgrad.core.modes import jit_disabled
from funcgrad.core.trace import TRACE, Tracer, current
from funcgrad.lowering import DEVICES, LOWERINGS, backend_of, place_of
from funcgrad.lowering.donation import may_overwrite, pair
from funcgrad.lowering.entry import MAX_TABLES, arm, entry_machinery, make_entry, vectorcalled
from funcgrad.lowering.entry_layout import NativeCallable
from funcgrad.lowering.entry_table import Native

CACHE_SIZE = 4096
CacheInfo = namedtuple("CacheInfo", "hits misses size")


class _Cache:
    """Specialisations of one function: least recently used ones are dropped beyond `CACHE_SIZE`."""

    def __init__(self) -> None:
        self.entries: OrderedDict[Hashable, Traced] = OrderedDict()
        self.hits = 0
        self.misses = 0
        self.lock = lock()

    def find(self, key: Hashable) -> Traced | None:
        with self.lock:
            entry = self.entries.get(key)
            if entry is not None:
                self.entries.move_to_end(key)
                self.hits += 1
            return entry

    def store(self, key: Hashable, entry: Traced) -> None:
        with self.lock:
            self.misses += 1
            self.entries[key] = entry
            if len(self.entries) > CACHE_SIZE:
                self.entries.popitem(last=False)


_caches: weakref.WeakKeyDictionary[Any, _Cache] = weakref.WeakKeyDictionary()


def _cache_of(f: Any) -> _Cache:
    """One cache for all jits of a plain function; other callables may compare equal without being the same."""
    return _caches.setdefault(f, _Cache()) if isinstance(f, types.FunctionType) else _Cache()


class Lowered:
    """A traced call of a jitted function.

    Attributes
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    def as_text(self, stage: str = "program") -> str:
        """The text of a stage."""
        if not isinstance(stage, str) or stage not in STAGES:
            raise ParameterError(
                f"there is no stage {printed(stage)}", hint=f"stages are {', '.join(map(repr, STAGES))}"
            )
        return stage_text(self.program, stage)


@vectorcalled
class Jit(NativeCallable):
    """What `jit` returns: call it as the function.

    A call goes to native code, which serves up to 8 specialisations and leaves all others to `_python`; objects of
    which none has a native entry yet are of class `PythonJit`.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        donate_argnums: tuple[int, ...],
        donate_argnames: tuple[str, ...],
        options: tuple[Hashable, ...],
    ) -> None:
        functools.update_wrapper(self, f)
        self.__wrapped__ = f
        self._static = static_argnums, static_argnames
        self._donated = donate_argnums, donate_argnames
        self._options = (static_argnums, static_argnames, *options)
        lowering, _, device = options
        self._here = device == "cpu"
        self._lowering = str(lowering if device is None or self._here else device)
        self._cache = _cache_of(f)
        self._name = function_name(f)
        self._natives: list[Native] = []
        self._entered: set[Hashable] = set()
        self._hits = bytearray(8)  # counted by native code

    @boundary
    def _python(self, *args: Any, **kwargs: Any) -> Any:
        if jit_disabled():
            return self._call_plainly(args, kwargs)
        traced, leaves, donated, key = self._specialize(args, kwargs)
        values = [value_and_aval(leaf(x, "an argument"))[0] for x in leaves]
        point = [*traced.constants, *values]
        outside = current() is None
        if self._here and outside:
            point = [to_host(x) for x in point]
        here = self._here and self._lowering == "llvm"
        place = "cpu" if here else place_of(traced.program, point, self._lowering)
        if outside and traced.constants and place not in (*LOWERINGS, "cpu"):
            point = [*traced.constants_on(DEVICES[place.partition(":")[0]].device(place)), *values]
        computed: Any
        if not outside or any([type(v) is Tracer for v in values]):
            computed = call(traced.program, *point, lowering="cpu" if here else self._lowering)
        else:
            computed = execute(traced.program, point, place, inputs_of(traced, donated))
        out = results(computed, point)
        if donated and outside:
            out = _donate(out, leaves, donated)
        if outside and backend_of(place).serves_calls and key not in self._entered:
            self._entered.add(key)
            try:
                self._enter(traced, args, kwargs, donated)
            except BaseException:
                self._entered.discard(key)
                raise
        return tree.unflatten(traced.out_tree, out)

    def _call_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function itself; its arrays are read-only, and have what traced ones have."""
        static, named = self._statics(args), self._static[1]
        given = tree.flatten((args, kwargs))[0]
        plain = [x if i in static else shown(x) for i, x in enumerate(args)]
        out = self.__wrapped__(*plain, **{k: x if k in named else shown(x) for k, x in kwargs.items()})
        values, out_tree = output_leaves(out, self._name)
        return tree.unflatten(out_tree, results(values, [x for x in given if isinstance(x, np.ndarray)]))

    def _enter(self, traced: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], donated: tuple[int, ...]) -> None:
        """Let native code serve calls like this one from now on, if it can."""
        native = native_entry(traced, args, kwargs, self._statics(args), self._static[1], donated)
        if native is None:
            return
        entry_machinery()  # compiled before the lock is taken
        with self._cache.lock:
            natives = [native, *self._natives][:MAX_TABLES]
            target = make_entry(
                natives,
                self._python,
                name=self._name,
                context=TRACE,
                switch=native_switch,
                hits=self._hits,
            )
            arm(self, target)
            self._natives = natives
            self.__class__ = Jit

    def _statics(self, args: tuple[Any, ...]) -> set[int]:
        """Positions of the static arguments of a call."""
        return {i % max(len(args), 1) for i in self._static[0] if -len(args) <= i < len(args)}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str:
        return str(getattr(self.__wrapped__, "__qualname__", self._name))

    def __repr__(self) -> str:
        return f"<jit of {self._name}>"

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    def trace(self, *args: Any, **kwargs: Any) -> Program:
        """The Program for these arguments (arrays, or `ShapeDtypeStruct`)."""
        return self._specialize(args, kwargs)[0].program

    def specialized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        """The traced function for these arguments: what `show`, `cost` and `to_numba` look at."""
        return self._specialize(args, kwargs)[0]

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The stages of the lowering for these arguments."""
        return Lowered(self.trace(*args, **kwargs))

    def numba(self, *args: Any, **kwargs: Any) -> Any:
        """The function as one that `@numba.njit` code can call, for arguments of these types.

        Parameters
        ----------
        args, kwargs
            Arrays, numbers, or `ShapeDtypeStruct`.

        Returns
        -------
        numba dispatcher
            Takes the leaves of the arguments one by one, arrays in C order, and returns the leaves of the result, one
            value or a tuple. An array of another dtype or layout raises TypeError, another shape ValueError; numbers
            are converted. Numba compiles it here, each time; its code is that of `to_numba`, and captured arrays are
            part of it. For a gradient: ``jit(grad(f)).numba(x)``.

        Raises
        ------
        UnsupportedError
            An operation, or a dtype, without a Numba form.
        """
        return numba_handle(self, self.specialized(args, kwargs))

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the result, without computing anything."""
        traced = self._specialize(args, kwargs)[0]
        return tree.unflatten(traced.out_tree, traced.program.out_avals)

    def clear_cache(self) -> None:
        """Forget all specialisations."""
        with self._cache.lock:
            self._cache.entries.clear()
            self._entered.clear()
            self._natives = []
            self.__class__ = PythonJit

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and the number of specialisations kept."""
        native = int.from_bytes(self._hits, sys.byteorder)
        return CacheInfo(self._cache.hits + native, self._cache.misses, len(self._cache.entries))

    # -- finding the specialisation

    def _specialize(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Traced, list[Any], tuple[int, ...], Hashable]:
        """The traced function for these arguments, the traced leaves, which of them results may take, and the key."""
        argnames = self._static[1]
        static_args = self._statics(args)
        static = tuple([(i, type(args[i]), args[i]) for i in sorted(static_args)])
        static_kw = tuple([(k, type(kwargs[k]), kwargs[k]) for k in sorted(argnames) if k in kwargs])
        fixed = tuple([(where, static_key(value)) for where, _, value in (*static, *static_kw)])
        dynamic = tuple([a for i, a in enumerate(args) if i not in static_args])
        dynamic_kw = {k: v for k, v in kwargs.items() if k not in argnames}
        leaves, treedef = tree.flatten((dynamic, dynamic_kw))
        if self._here or self._lowering not in LOWERINGS:
            leaves = [taken(x, "cpu" if self._here else self._lowering) for x in leaves]
        avals = [_type_of(x) for x in leaves]
        if None in avals:
            names = self._names(treedef, args, static_args, dynamic_kw)
            avals = [a or abstract_leaf(x, n) for a, x, n in zip(avals, leaves, names, strict=True)]
        key = (self._options, fixed, treedef, tuple(avals))
        try:
            traced = self._cache.find(key)
        except TypeError:
            raise self._unhashable(static, static_kw) from None
        if traced is None:
            names = self._names(treedef, args, static_args, dynamic_kw)
            traced = self._trace(treedef, avals, names, static, static_kw, len(args))
            if not traced.captured_tracer:
                self._cache.store(key, traced)
        donated = self._donation(treedef, args, static_args, dynamic_kw)
        return traced, leaves, pair(avals, donated, traced.program.out_avals) if donated else (), key

    def _unhashable(self, static: Any, static_kw: Any) -> StaticArgumentError:
        for where, kind, value in (*static, *static_kw):
            try:
                hash(value)
            except TypeError:
                what = f"argument {where}" if isinstance(where, int) else f"argument {where!r}"
                hint = (
                    "pass a tuple instead of a list"
                    if kind is list
                    else "pass it as a traced argument, or make it hashable"
                )
                return StaticArgumentError(
                    f"jit: static {what} of {self._name} is not hashable: {kind.__name__} {printed(value)}", hint=hint
                )
        return StaticArgumentError(f"jit: an argument of {self._name} has a tree that is not hashable")

    def _names(self, treedef: Any, args: Any, static: Any, keywords: Any) -> list[str]:
        dynamic = [i for i in range(len(args)) if i not in static]
        positional, named = treedef.children()
        names = leaf_names(self.__wrapped__, positional, dynamic)
        for key, child in zip(named.entries(), named.children(), strict=True):
            names += tree.leaf_paths(child, key)
        return names

    def _trace(
        self, treedef: Any, types: Sequence[Aval], names: Any, static: Any, static_kw: Any, count: int
    ) -> Traced:
        f = self.__wrapped__

        def function(tracers: list[Any]) -> Any:
            dynamic, keywords = tree.unflatten(treedef, tracers)
            rest = iter(dynamic)
            fixed = {i: value for i, _, value in static}
            args = [fixed[i] if i in fixed else next(rest) for i in range(count)]
            return f(*args, **keywords, **{k: v for k, _, v in static_kw})

        return trace(function, [(None, t) for t in types], names, name=self._name, purpose="jit", shows=False)

    def _donation(self, treedef: Any, args: Any, static: Any, keywords: Any) -> list[bool]:
        nums, words = self._donated
        if not nums and not words:
            return []
        donated = {i % max(len(args), 1) for i in nums if -len(args) <= i < len(args)}
        positional, named = treedef.children()
        flags: list[bool] = []
        dynamic = [i for i in range(len(args)) if i not in static]
        for i, child in zip(dynamic, positional.children(), strict=True):
            flags += [i in donated] * child.num_leaves
        for key, child in zip(named.entries(), named.children(), strict=True):
            flags += [key in words] * child.num_leaves
        return flags


class PythonJit(Jit):
    """A `Jit` of which no specialisation has a native entry yet."""

    __slots__ = ()

    __call__ = Jit._python


def _type_of(x: Any) -> Aval | None:
    """The type of an argument that needs no conversion; None for all others."""
    kind = type(x)
    if kind is Tracer:
        return x.aval  # type: ignore[no-any-return]
    if kind is np.ndarray or kind is Array:
        if x.dtype.isbuiltin == 1 and x.dtype.isnative and x.dtype.kind in "biufc":
            return make_aval(x.shape, x.dtype)
        return None
    if kind is float or kind is int or kind is complex:
        return value_and_aval(x)[1]
    if isinstance(x, np.generic) and x.dtype.kind in "biufc":
        return make_aval((), x.dtype)
    if kind is DeviceArray:
        return x.aval  # type: ignore[no-any-return]
    return make_aval((), BOOL) if kind is bool else None


def _donate(out: list[Any], leaves: list[Any], donated: Sequence[int]) -> list[Any]:
    """Put results into donated arguments: the caller gets back the object that they gave; on a device, it is gone."""
    for i in donated:
        if i >= 0 and type(leaves[i]) is DeviceArray and sum([leaves[i] is x for x in leaves]) == 1:
            leaves[i].delete()
    allowed = {i for i in donated if i >= 0 and may_overwrite(leaves[i], leaves)}
    for k, i in enumerate(donated):
        if i in allowed and type(out[k]) is Array:
            np.copyto(leaves[i], out[k])
            out[k] = leaves[i]
    return out


def _numbers(value: Any, what: str) -> tuple[int, ...]:
    items = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in items):
        raise ArgumentError(f"jit: {what} is an int or a tuple of ints, got {printed(value)}")
    return items


def _words(value: Any, what: str) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(i, str) for i in items):
        raise ArgumentError(f"jit: {what} is a string or a tuple of strings, got {printed(value)}")
    return items


def _complete(f: Any, numbers: tuple[int, ...], words: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Parameters named by position are also meant by keyword, and the other way."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return numbers, words
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keyword = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for w in words:
        if w not in keyword and not anything:
            raise ArgumentError(f"jit: {function_name(f)} has no parameter {w!r}")
    for n in numbers:
        if not -len(positional) <= n < len(positional) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            raise ArgumentError(
                f"jit: position {n} is out of range: {function_name(f)} has {len(positional)} positional parameters"
            )
    all_words = {*words, *[positional[n] for n in numbers if -len(positional) <= n < len(positional)]} & (
        keyword | set(words)
    )
    all_numbers = {*numbers, *[i for i, p in enumerate(positional) if p in words]}
    return tuple(sorted(all_numbers)), tuple(sorted(all_words))


def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    lowering: str = "llvm",
    fast_math: bool = False,
    device: Any = None,
) -> Any:
    """Trace `f` once per kind of argument, and run the Program after that. Also a decorator, with or without options.

    Inside, arguments have a shape and dtype but no value: Python's ``if`` and ``while`` cannot depend on them.
    Arrays that `f` captures are frozen when it is traced. The result is that of `f`, with strong dtypes.

    Parameters
    ----------
    static_argnums, static_argnames
        Arguments that are Python values while tracing; hashable. Another value (or type) traces again.
    donate_argnums, donate_argnames
        Arguments whose memory may be used for results of the same type. If it is, that very array is returned.
    lowering
        How the Program is made to run. ``"llvm"``: as machine code of our own. ``"numba"``: as Python loops that Numba
        compiles at the first call (see `to_numba`), which takes longer; derivatives of the result go the same way.
    fast_math
        False is the only choice so far.
    device
        Where it runs: ``"cuda"``, ``"cuda:1"`` or one of `devices` (see there), with arguments sent there and results
        that stay there, as `DeviceArray`; ``"cpu"``; or None: where an argument lies. In a function that is jitted,
        too, the device of the outer one counts.

    Returns
    -------
    Jit
        Callable as `f`; with ``trace``, ``lower``, ``numba``, ``eval_shape``, ``cache_info`` and ``clear_cache``.

    Raises
    ------
    StaticArgumentError
        A static argument is not hashable.
    TracerBoolConversionError
        Python control flow depends on a traced value.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> step = fg.jit(lambda w, g: w - 0.1 * g)
    >>> step(np.ones(2), np.ones(2)).tolist()
    [0.9, 0.9]
    """
    if f is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            lowering=lowering,
            fast_math=fast_math,
            device=device,
        )
    require_callable(f, "jit")
    if not isinstance(lowering, str) or lowering not in LOWERINGS:
        raise ParameterError(f"jit: lowering is one of {', '.join(map(repr, LOWERINGS))}, got {printed(lowering, 40)}")
    if fast_math is not False:
        raise UnsupportedError("jit: fast_math is not supported yet", hint="leave it out")
    device = device_name(device, "jit")
    if device not in (None, "cpu") and lowering != "llvm":
        raise ParameterError(f"jit: lowering {lowering!r} is for the CPU, and device is {device!r}")
    static = _complete(f, _numbers(static_argnums, "static_argnums"), _words(static_argnames, "static_argnames"))
    donated = _complete(f, _numbers(donate_argnums, "donate_argnums"), _words(donate_argnames, "donate_argnames"))
    both = sorted({*static[0], *static[1]} & {*donated[0], *donated[1]}, key=str)
    if both:
        raise ArgumentError(
            f"jit: {both[0]!r} is static and donated; a static argument is a Python value, not an array"
        )
    return PythonJit(f, *static, *donated, (lowering, bool(fast_math), device))
