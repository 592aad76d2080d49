"""Write and read the arrays of a step; every use of Orbax in this package.

Orbax's array handler writes arrays as zarr 3, and reads arrays into any sharding. Each
process writes and reads the parts of arrays on its own devices. Processes write
different files, so no process merges files for the others. This package, not Orbax,
decides which checkpoints exist, when a step appears and whether files are sound.

With a folder of its own, a leaf costs two milliseconds of CPU in a save and one in a
restore: for 5 000 leaves of 1 KiB, a save took 10.4 s and a restore 5.0 s. In one file
both take 0.4 s (`tests-integration/benchmarks/ckpt_small.py`). So many leaves of at
most 64 KiB, such as adapters, experts and their moments, share one safetensors file,
under their own names. Process 0 writes it, so a leaf whose values lie on several
processes still has a folder. Every process reads the leaves that it needs, into any
sharding. A state with few small leaves stays a plain Orbax checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flax
import jax
import numpy as np
import orbax.checkpoint as ocp
from etils.epath import gpath
from orbax.checkpoint import type_handlers
from roxxel_store.files import mode_of

from roxxel_ckpt._arrays.layout import SMALL_FILE, STATE, in_groups, leaf_path
from roxxel_ckpt._arrays.tensor_file import DTYPES, packed_header, read_header
from roxxel_ckpt.coordination import process_index
from roxxel_ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    import numpy.typing as npt

    from roxxel_ckpt._arrays.layout import LeafSpec

# Leaves of at most this size share a file, if there are at least so many.
_SMALL_BYTES = 1 << 16
_FEWEST_SMALL = 256
# The name of a dtype in numpy, by its name in the shared file.
_NUMPY = {found: name for name, found in DTYPES.items()}
# If an array has at least this size, each of its replicas writes a part. For smaller
# arrays, one file per replica would cost more than it saves.
_REPLICA_PARALLEL_BYTES = 1 << 20

_CONTEXT = type_handlers.get_ts_context(use_ocdbt=False)
"""The threads of TensorStore, for all saves and restores of this process.

Orbax makes a context for each save and each restore. TensorStore 0.1.86 sometimes frees
the threads of a context twice, and the process dies: once in 2 200 saves and restores
of a small model.
"""

BYTES_AT_ONCE = 1 << 24
"""Bytes of the arrays to read in one call, unless a hundredth of the state is more.

Orbax reads all arrays of a call at the same time, and keeps the files' bytes in memory
meanwhile. Beyond its result, a restore of 1.5 GB needs 0.5 GB, and 0.65 GB for
uncommitted arrays, which are read as numpy first. With 64 MiB at once it needed 0.65
and 0.8 GB, and no less CPU time (`ckpt_restore.py` in `tests-integration/benchmarks`).
"""


def start_writing(directory: Path, arrays: dict[str, Any]) -> Callable[[], None]:
    """Copy arrays to the host and start to write the files of this process.

    `directory` has an empty directory `state`. The arrays may be donated once this
    function returns. The returned function waits until the files are written, and
    raises any write error.
    """
    small = _small_leaves(arrays)
    pieces = _packed(small) if small and process_index() == 0 else []
    others = {name: array for name, array in arrays.items() if name not in small}
    wait_for_others = _start_writing(directory / STATE, others) if others else None

    def wait() -> None:
        if pieces:
            with (directory / SMALL_FILE).open("wb") as file:
                file.writelines(pieces)
            pieces.clear()
        if wait_for_others is not None:
            wait_for_others()

    return wait


def _small_leaves(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the leaves that share a file; the same on every process."""
    small = {name: array for name, array in arrays.items() if _is_small(array)}
    return small if len(small) >= _FEWEST_SMALL else {}


def _is_small(array: Any) -> bool:
    if array.nbytes > _SMALL_BYTES or array.dtype.name not in DTYPES:
        return False
    if not isinstance(array, jax.Array) or jax.process_count() == 1:
        return True
    owners = {device.process_index for device in array.sharding.device_set}
    return array.is_fully_replicated and 0 in owners


def _packed(arrays: dict[str, Any]) -> list[bytes]:
    """Return the content of the file in pieces: the header, and copies of the values.

    Joining them would need the memory twice.
    """
    values = jax.device_get(arrays)  # all copies from a device begin at once
    described = {
        name: (DTYPES[value.dtype.name], value.shape, value.nbytes)
        for name, value in values.items()
    }
    header = packed_header(described, {"format": "np"})
    return [header, *(value.tobytes() for value in values.values())]


def _start_writing(directory: Path, arrays: dict[str, Any]) -> Callable[[], None]:
    commits: list[Any] = []
    handler = _handler(commits)
    by_path = {leaf_path(name): array for name, array in arrays.items()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(contextlib.closing(handler))
        stack.callback(_await_all, commits)
        futures: Any = asyncio.run(
            handler.async_save(_Path(directory), args=ocp.args.PyTreeSave(by_path))
        )
        ended = stack.pop_all()

    def wait() -> None:
        with ended:
            for future in futures or ():
                future.result()

    return wait


def _handler(commits: list[Any]) -> ocp.PyTreeCheckpointHandler:
    """Return Orbax's handler of arrays; a write adds its futures to `commits`."""
    arrays_of_jax = _Arrays(
        array_metadata_store=None,
        enable_write_sharding_file=False,
        min_slice_bytes_for_replica_parallel=_REPLICA_PARALLEL_BYTES,
    )
    arrays_of_numpy = _NumpyArrays()
    arrays_of_jax.commits = arrays_of_numpy.commits = commits
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=False,
        use_zarr3=True,
        type_handler_registry=type_handlers.create_type_handler_registry(
            (np.ndarray, arrays_of_numpy),
            (jax.Array, arrays_of_jax),
        ),
    )


class _Path(gpath.PosixGPath):
    """A path that Orbax may not look at raises an error, and does not seem absent."""

    def exists(self) -> bool:
        """Return whether the path exists; raise an error of the disk."""
        return mode_of(Path(self)) is not None


class _Arrays(type_handlers.ArrayHandler):
    """Orbax's handler of `jax.Array`, whose reads and writes end together."""

    commits: list[Any]

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        _keep_loop_open()
        return await super().deserialize(_in_one_context(infos), args)

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        started = await super().serialize(values, _ending_together(infos), args)
        self.commits += started
        return started


class _NumpyArrays(type_handlers.NumpyHandler):
    """Orbax's handler of numpy arrays, whose reads and writes end together."""

    commits: list[Any]

    async def deserialize(self, infos: Any, args: Any = ()) -> Any:
        _keep_loop_open()
        # Orbax opens several arrays and waits for none if the next is missing.
        read = super().deserialize
        pairs = zip(_in_one_context(infos), args, strict=True)
        tasks = (read([info], [arg]) for info, arg in pairs)
        return [array for [array] in await asyncio.gather(*tasks)]

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        started = await super().serialize(values, _ending_together(infos), args)
        self.commits += started
        return started


def _await_all(commits: list[Any]) -> None:
    """Wait until every commit has ended; Orbax's own future raises their errors.

    That future ends at the first error, while other commits go on.
    """
    for commit in commits:
        with contextlib.suppress(Exception):
            commit.result()


def _ending_together(infos: Any) -> Any:
    """Let the loop that writes these arrays wait until all writes have ended."""
    for info in _in_one_context(infos)[:1]:
        # Orbax awaits this method in that loop, and before any write.
        create: Any = getattr(info, "await_path_creation", None)
        info.await_path_creation = functools.partial(_stay_open, create)
    return infos


def _in_one_context(infos: Any) -> Any:
    """Let these arrays use the threads that all saves and restores share."""
    for info in infos:
        info.ts_context = _CONTEXT
    return infos


async def _stay_open(create: Callable[[], Awaitable[Any]]) -> Any:
    _keep_loop_open()
    return await create()


def _keep_loop_open() -> None:
    """Let the running loop wait for its tasks before it closes.

    Orbax closes the loop at the first error. Other reads and writes then go on, perhaps
    while their files are removed, and at their end each prints a traceback about the
    closed loop.
    """
    loop: Any = asyncio.get_running_loop()
    close = loop.close

    async def wait() -> None:
        # A task that fails leaves tasks that it has started in the meantime.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*tasks, return_exceptions=True)

    def wait_and_close() -> None:
        loop.run_until_complete(wait())
        close()

    loop.close = wait_and_close


def read_arrays(
    directory: Path, targets: Mapping[str, jax.ShapeDtypeStruct | None]
) -> dict[str, Any]:
    """Read arrays of a step.

    Each process reads what its devices need for the shape, dtype and sharding of the
    target. A target of None reads the whole array as numpy. Small leaves in their
    shared file are always read as numpy. PRNG keys are returned as 32-bit words.
    """
    small = _read_small(directory, targets)
    targets = {name: each for name, each in targets.items() if name not in small}
    return small | (_read_arrays(directory, targets) if targets else {})


def read_as_numpy(
    directory: Path, names: Sequence[str], leaves: Mapping[str, LeafSpec]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the leaves `names` in order as numpy arrays, PRNG keys as 32-bit words.

    Raises:
        CheckpointError: A leaf is larger than the memory of this machine.
    """
    for name in names:
        _check_fits_memory(directory, name, leaves[name])
    sizes = {name: leaves[name].num_bytes or 0 for name in names}
    for group in in_groups(sizes, BYTES_AT_ONCE):
        stored = dict.fromkeys(name for name in group if leaves[name].is_stored)
        found = read_arrays(directory, stored)
        for name in group:
            # No caller reads the dtype of an array without values.
            yield name, found.get(name, np.zeros(leaves[name].shape, bool))


def _check_fits_memory(directory: Path, name: str, spec: LeafSpec) -> None:
    """Raise an error unless the memory of this machine can hold a leaf.

    A leaf of fill values has no files, so the files do not bound its size.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (spec.num_bytes or 0) > memory:
        raise CheckpointError(
            f"{directory}: {name} is {spec}, which needs {spec.num_bytes} bytes, and "
            f"this machine has {memory}; use a machine with more memory"
        )


def _read_small(directory: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the leaves that are in the file, as numpy arrays."""
    path = directory / SMALL_FILE
    if mode_of(path) is None:
        return {}
    # Most calls of a restore read large leaves alone: parse the header for no others.
    names = [n for n in names if mode_of(directory / STATE / leaf_path(n)) is None]
    if not names:
        return {}
    header, first = read_header(path, "restore another step")
    found: dict[str, npt.NDArray[Any]] = {}
    with path.open("rb") as file:
        for name in names:
            if name in header:
                entry = header[name]
                start, stop = entry["data_offsets"]
                file.seek(first + start)
                values = np.frombuffer(file.read(stop - start), _NUMPY[entry["dtype"]])
                found[name] = values.reshape(entry["shape"])
    return found


def _read_arrays(
    directory: Path, targets: Mapping[str, jax.ShapeDtypeStruct | None]
) -> dict[str, Any]:
    paths = {name: leaf_path(name) for name in targets}
    item = {
        paths[name]: 0 if target is None else target for name, target in targets.items()
    }
    restore_args = {
        paths[name]: ocp.RestoreArgs(restore_type=np.ndarray)
        if target is None
        else ocp.ArrayRestoreArgs(
            restore_type=jax.Array,
            sharding=target.sharding,
            global_shape=target.shape,
            dtype=target.dtype,
        )
        for name, target in targets.items()
    }
    # Orbax's own Checkpointer would wait for all processes; its handler does not.
    handler = _handler([])
    with _quiet(), contextlib.closing(handler):
        found = handler.restore(
            _Path(directory / STATE),
            args=ocp.args.PyTreeRestore(
                item=item, restore_args=restore_args, partial_restore=True
            ),
        )
    return {name: found.pop(path) for name, path in paths.items()}


def versions() -> dict[str, str]:
    """Return the versions of the libraries that write a checkpoint."""
    return {
        "jax": jax.__version__,
        "flax": flax.__version__,
        "orbax-checkpoint": ocp.__version__,
    }


@contextlib.contextmanager
def _quiet() -> Generator[None, None, None]:
    """Hide what Orbax logs, such as tracebacks and hints.

    No error is lost, because Orbax also raises its errors.
    """

    def is_not_of_orbax(record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    logger = logging.getLogger("absl")
    logger.addFilter(is_not_of_orbax)
    try:
        yield
    finally:
        logger.removeFilter(is_not_of_orbax)
