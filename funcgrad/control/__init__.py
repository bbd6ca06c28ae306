"""Primitives that hold Programs."""
