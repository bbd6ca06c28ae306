"""Function → function: grad, jvp, vmap, jit and their kin."""

from funcgrad.api.callbacks import io_callback, pure_callback
from funcgrad.api.checkpoint import checkpoint, checkpoint_name, checkpoint_policies
from funcgrad.api.cost import cost
from funcgrad.api.custom_jvp import custom_jvp
from funcgrad.api.custom_vjp import CustomVJPPrimal, custom_gradient, custom_vjp
from funcgrad.api.devices import Device, device_get, device_put, devices
from funcgrad.api.forward import jvp, linearize, stop_gradient
from funcgrad.api.from_numba import from_numba
from funcgrad.api.inspect import ShapeDtypeStruct, eval_shape, make_program, show
from funcgrad.api.jacobian import hessian, hvp, jacfwd, jacobian, jacrev
from funcgrad.api.jit import Jit, jit
from funcgrad.api.numba_code import to_numba
from funcgrad.api.reverse import grad, value_and_grad, vjp
from funcgrad.api.rules import SymbolicZero
from funcgrad.api.vectorize import vmap
