"""The IR and the one place where operations are applied: Program, Primitive, Trace, bind, evaluate."""

from funcgrad.core import printer
