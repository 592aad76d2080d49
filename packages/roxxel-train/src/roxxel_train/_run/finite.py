"""Check that the trained parameters are finite, without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from roxxel_train._step.compiled import is_debugging
from roxxel_train._step.step import is_finite, is_sound

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from roxxel_train._step.step import Tree


class FiniteCheck:
    """The check of the parameters before a save, and after the last update."""

    def __init__(self, model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> None:
        self._model = model
        self._optimizer = optimizer
        self._program: Future[Any] | None = None

    def compile_ahead(self, compiler: Executor) -> None:
        """Start to compile the check, so the first save does not wait for it."""
        if not is_debugging():
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
                self._trained(),
            )
            self._program = compiler.submit(is_finite.lower(shapes).compile)

    def close(self) -> None:
        """Cancel the compilation if it has not started."""
        if self._program is not None:
            self._program.cancel()
            self._program = None

    def begin(self) -> jax.Array | bool:
        """Start the check; True for arrays that the next update has donated."""
        trained = self._trained()
        if not is_sound(trained):
            return True
        program = self._program
        if program is not None and program.done():
            return program.result()(trained)
        return is_finite(trained)

    def _trained(self) -> Tree:
        return nnx.to_pure_dict(nnx.state(self._model, self._optimizer.wrt))
