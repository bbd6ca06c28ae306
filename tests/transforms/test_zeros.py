"""zeros: a Program without the inputs that are zero, and what they annihilate."""

from __future__ import annotations

import numpy as np

import funcgrad as fg
from funcgrad.core.evaluate import execute
from funcgrad.transforms.zeros import zeros


def test_what_chooses_between_zeros_is_zero() -> None:
    program = fg.make_program(lambda x, t: (np.where(x > 0, t, 0.0), np.where(x > 0, x * t, -t) - 0.0))(2.0, 3.0)
    left, zero = zeros(program, (False, True))
    assert zero == (True, True) and "select" not in [e.primitive.name for e in left.equations]


def test_what_is_left_keeps_its_name_and_its_value() -> None:
    program = fg.make_program(lambda s, x, t: (x * s + np.sin(x) * t, np.sin(x) * t, x, 1.5))(2.0, 3.0, 5.0)
    left, zero = zeros(program, (False, False, True))
    assert left.input_names == ("s", "x") and zero == (False, True, False, False)
    assert [e.primitive.name for e in left.equations].count("mul") == 1
    assert tuple(execute(left, [2.0, 3.0])) == (6.0, 0.0, 3.0, 1.5)
