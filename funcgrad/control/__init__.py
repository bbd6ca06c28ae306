"""Primitives that hold Programs."""

from funcgrad.control import branch, call, loop, loop_reverse, rows
