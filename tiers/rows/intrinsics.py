"""What the compiled kernels are made with: how a function is compiled, and two instructions that Python has no words for.

Importing this imports numba. A kernel's compiled code is kept by numba in `__pycache__` beside its source, in `NUMBA_CACHE_DIR`, or in
the user's cache where the package's folder cannot be written. What is kept is forgotten when the *kernel's* file changes, not when
this one does: whoever changes something here touches the kernels' files too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

INTS = types.Array(types.int64, 1, "C")
POSITIONS = types.Array(types.uint64, 1, "C")
NUMBERS = types.Array(types.float32, 2, "C")
BYTES = types.Array(types.uint8, 2, "C")
PLACES = types.Array(types.int32, 1, "C")
MARKS = types.Array(types.boolean, 1, "C")
GIVEN_INTS = types.Array(types.int64, 1, "C", readonly=True, aligned=False)
GIVEN_NUMBERS = types.Array(types.float32, 2, "C", readonly=True, aligned=False)
GIVEN_BYTES = types.Array(types.uint8, 2, "C", readonly=True, aligned=False)
"""What is only read may be of any alignment and read-only, as views of a received frame are."""


def inlined(function: Function) -> Function:
    """Compiled into the kernels that call it."""
    return cast(Function, cast(Any, numba.njit)(error_model="numpy")(function))


def kernel(function: Function, result: Any, *arguments: Any) -> Function:
    """Compiles for exactly these types, or takes what an earlier process compiled. Runs without the GIL.

    One signature a kernel: two processes that compile at once then keep the same code under the same name, whoever comes last.
    """
    compiled = partial(cast(Any, numba.njit), result(*arguments), nogil=True, error_model="numpy")
    try:
        return cast(Function, compiled(cache=True)(function))
    except (OSError, RuntimeError):
        # No folder that it can be kept in, or a full disk.
        return cast(Function, compiled()(function))


@intrinsic
def _prefetch(typing: Any, array: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte = ir.IntType(8).as_pointer()
        place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        number = ir.IntType(32)
        instruction = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        )
        builder.call(instruction, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, at), generate


@intrinsic
def _copy(typing: Any, to: Any, at: Any, source: Any, start: Any, nbytes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        written = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        read = context.make_array(signature.args[2])(context, builder, arguments[2]).data
        written, read = builder.gep(written, [arguments[1]]), builder.gep(read, [arguments[3]])
        cast(Any, cgutils).raw_memcpy(builder, written, read, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(to, at, source, start, nbytes), generate


prefetch = cast(Callable[[Any, int], None], _prefetch)
"""Has the processor fetch the cache line of item `at` of a flat array, and goes on. Any place may be named."""

copy = cast(Callable[[Any, int, Any, int, int], None], _copy)
"""Copies bytes between two arrays of one item size that do not overlap: to the item `at`, from the item `start` on."""
