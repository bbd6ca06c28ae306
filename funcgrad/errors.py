"""The exceptions, under their public address. JAX's names of the same conditions are aliases."""

from funcgrad.base.errors import (
    ArgumentError,
    AssignmentError,
    AxisError,
    ConcretizationTypeError,
    CustomRuleError,
    DtypeError,
    ForwardModeError,
    FuncgradError,
    IndexingError,
    IntegerOverflowError,
    LinearityError,
    NonConcreteBooleanIndexError,
    NonScalarOutputError,
    OutOfBoundsError,
    ParameterError,
    ProgramError,
    RuleError,
    ShapeError,
    SingularMatrixError,
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
    "ArgumentError", "AssignmentError", "AxisError", "ConcretizationTypeError", "CustomRuleError", "DtypeError",
    "ForwardModeError", "FuncgradError", "IndexingError", "IntegerOverflowError", "LinearityError",
    "NonConcreteBooleanIndexError", "NonScalarOutputError",
    "OutOfBoundsError", "ParameterError", "ProgramError", "RuleError", "ShapeError", "ShapeTruthError",
    "SingularMatrixError", "StaticArgumentError", "TracerArrayConversionError", "TracerBoolConversionError",
    "TracerIntegerConversionError", "TracerValueError", "TreeError", "UnexpectedTracerError", "UnsupportedError",
    "UsageError", "ZeroWeightsError",
]  # fmt: skip
