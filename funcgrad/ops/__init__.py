"""First-order primitives. One op, one block: docstring, definition, derivative, domain."""
