"""The exceptions, under their public address. JAX's names of the same conditions are aliases."""

from funcgrad.base.errors import (
    ArgumentError,
    AssignmentError,
    AxisError,
    BranchTypeError,
    CallbackError,
    CarryTypeError,
    ConcretizationTypeError,
    DtypeError,
    FuncgradError,
    IndexingError,
    IntegerOverflowError,
    NanError,
    NonConcreteBooleanIndexError,
    NonScalarOutputError,
    OutOfBoundsError,
    ParameterError,
    ProgramError,
    RuleError,
    ShapeError,
    StaticArgumentError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    TracerValueError,
    TreeError,
    UnexpectedTracerError,
    UnsupportedError,
    UsageError,
    ZeroWeightsError,
)
from funcgrad.core.trace import ShapeTruthError

__all__ = [
    "ArgumentError", "AssignmentError", "AxisError", "BranchTypeError", "CallbackError",
    "CarryTypeError", "ConcretizationTypeError", "DtypeError", "FuncgradError",
    "IndexingError", "IntegerOverflowError", "NanError", "NonConcreteBooleanIndexError", "NonScalarOutputError",
    "OutOfBoundsError", "ParameterError", "ProgramError", "RuleError", "ShapeError", "ShapeTruthError",
    "StaticArgumentError", "TracerArrayConversionError", "TracerBoolConversionError",
    "TracerIntegerConversionError", "TracerValueError", "TreeError", "UnexpectedTracerError", "UnsupportedError",
    "UsageError", "ZeroWeightsError",
]  # fmt: skip
