"""batch_onto: rows along the axes that are wanted, or summed, of a Program that is otherwise the same."""

from __future__ import annotations

import numpy as np

import funcgrad as fg
from funcgrad.core.evaluate import execute
from funcgrad.transforms.batch import SUM, batch_onto

X = np.arange(6.0).reshape(2, 3)


def test_rows_where_they_are_wanted() -> None:
    program = fg.make_program(lambda a, b: (np.stack([a, b]), a * b, np.sin(b)))(X[0], X[1])
    rows = batch_onto(program, 4, (0, None), (1, SUM, None))
    assert rows.input_names == program.input_names == ("a", "b")
    a = np.stack([X[0] * k for k in range(4)])
    stacked, total, same = execute(rows, [a, X[1]])
    np.testing.assert_array_equal(stacked, np.stack([np.stack([r, X[1]]) for r in a], axis=1))
    np.testing.assert_array_equal(total, np.sum(a * X[1], axis=0))
    np.testing.assert_array_equal(same, np.sin(X[1]))
