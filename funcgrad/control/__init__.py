"""Primitives that hold Programs."""

from funcgrad.control import branch, call, callback, loop, loop_reverse, rows, unfold
