"""Looking at values while a traced or compiled function runs."""

from funcgrad.api.callbacks import debug_callback as callback, debug_print as print


def __getattr__(name: str) -> object:
    if name == "breakpoint":
        raise AttributeError("funcgrad.debug has no breakpoint; write debug.callback(lambda x: breakpoint(), x)")
    raise AttributeError(f"module 'funcgrad.debug' has no attribute {name!r}")


__all__ = ["callback", "print"]
