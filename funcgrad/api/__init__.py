"""Function → function: grad, jvp, vmap, jit and their kin."""

from funcgrad.api.callbacks import io_callback, pure_callback
from funcgrad.api.forward import jvp, linearize, stop_gradient
from funcgrad.api.inspect import ShapeDtypeStruct, eval_shape, make_program, show
from funcgrad.api.jacobian import hessian, hvp, jacfwd, jacobian, jacrev
from funcgrad.api.jit import Jit, jit
from funcgrad.api.reverse import grad, value_and_grad, vjp
from funcgrad.api.vectorize import vmap
