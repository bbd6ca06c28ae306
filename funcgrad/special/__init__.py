"""Special functions, under the names of `scipy.special`.

Plain calls of SciPy's own functions on traced arrays come here too: ``scipy.special.erf(x)`` works under grad.
"""

from funcgrad.numpy.elementwise import make_function
from funcgrad.numpy.operands import numpy_table
from funcgrad.numpy.statistics import logsumexp
from funcgrad.ops.exponential import sigmoid_p
from funcgrad.ops.special import erf_p, erfc_p, erfinv_p, xlog1py_p, xlogy_p

erf = make_function(erf_p, "erf")
erfc = make_function(erfc_p, "erfc")
erfinv = make_function(erfinv_p, "erfinv")
expit = make_function(sigmoid_p, "expit")
xlogy = make_function(xlogy_p, "xlogy")
xlog1py = make_function(xlog1py_p, "xlog1py")

__all__ = ["erf", "erfc", "erfinv", "expit", "logsumexp", "xlog1py", "xlogy"]

for _function in (erf, erfc, erfinv, expit, xlogy, xlog1py):
    _function.__module__ = "funcgrad.special"
    numpy_table[_function.__name__] = _function  # SciPy is not imported: its ufuncs are known by name
