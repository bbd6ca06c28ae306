"""Looking at values while a traced or compiled function runs."""

from funcgrad.api.callbacks import debug_callback as callback, debug_print as print

__all__ = ["callback", "print"]
