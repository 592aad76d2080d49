"""Read what an Orbax `CheckpointManager` recorded about its checkpoints.

The first Roxxel, an older library of this name, saved its checkpoints with an Orbax
manager. A step has two items: `default`, the NNX state of the tuple
`(model, optimizer)`, and `metrics`, which holds the loss. This package restores these
checkpoints and never writes any. Their files have no digests.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_store.files import names_in

from roxxel_ckpt._integrity import escaped, text_of
from roxxel_ckpt._names import MANAGER_ITEM
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointUnreadableError,
    brief,
    is_of_files,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import jax

# `Description.format` of a step that an Orbax manager wrote.
FORMAT_OF_MANAGER = 0
_ROOTS = {"0": "model", "1": "optimizer"}
_TREE_FILE = f"{MANAGER_ITEM}/_METADATA"
# Orbax's codes for the types of keys: of a sequence, and of a dict.
_KEY_TYPES = (1, 2)
_NUMBER = "scalar"
_LEAF_TYPES = (_NUMBER, "jax.Array", "np.ndarray")


class ManagerLeaf(NamedTuple):
    """A leaf in Orbax's tree.

    Attributes:
        path: The keys from the root of the tree to the leaf.
        is_number: Whether the leaf is a Python number.
        key_kind: Implementation of the leaf's PRNG keys; None for other leaves.
    """

    path: tuple[str, ...]
    is_number: bool
    key_kind: str | None


def read_manager_description(directory: Path) -> dict[str, Any]:
    """Return the description of a step, with the keys of `checkpoint.json`.

    Raises:
        CheckpointDamagedError: A file is damaged, or the manager did not commit the
            step.
    """
    committed_at = _json(directory, "_CHECKPOINT_METADATA").get(
        "commit_timestamp_nsecs"
    )
    if not isinstance(committed_at, int):
        raise CheckpointDamagedError(
            f"{directory}: Orbax did not commit this step; restore another step"
        )
    return {
        "step": int(directory.name.partition(".")[0]),
        "metrics": _json(directory, "metrics/metrics"),
        "extra": None,
        "saved_at": committed_at / 1e9,
        "format": FORMAT_OF_MANAGER,
    }


def manager_leaves(directory: Path) -> dict[str, ManagerLeaf]:
    """Return every leaf of a step, by the name that this package gives the leaf.

    Raises:
        CheckpointDamagedError: A file is damaged, two leaves have the same stored name,
            or the tree is not the state of `(model, optimizer)`.
    """
    tree: Any = _json(directory, _TREE_FILE).get("tree_metadata")
    try:
        entries = [_parsed_entry(entry) for entry in tree.values()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(directory, _TREE_FILE) from error
    children: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for path, _ in entries:
        for depth, key in enumerate(path):
            children[path[:depth]].add(key)
    leaves: dict[str, ManagerLeaf] = {}
    places: dict[str, str] = {}
    kinds = _key_kinds(directory)
    for path, value_type in entries:
        if value_type is None:
            continue
        if path[0] not in _ROOTS:
            raise CheckpointDamagedError(
                f"{directory}: Orbax wrote {path[0]!r} here, which is not part of the "
                "state of (model, optimizer); restore another step"
            )
        name = _name_of(path, children)
        if name in leaves:
            raise _damaged(directory, _TREE_FILE)
        place = ".".join(path)
        if place in places:
            raise CheckpointDamagedError(
                f"{directory}: Orbax stored {places[place]} and {name} under "
                "one name, so one of them is lost; restore another step"
            )
        places[place] = name
        leaves[name] = ManagerLeaf(path, value_type == _NUMBER, kinds.get(place))
    return leaves


def read_manager_leaves(directory: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of every leaf that an Orbax manager wrote, by name.

    Raises:
        CheckpointDamagedError: A leaf cannot be read.
    """
    import jax
    import numpy as np

    specs: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, leaf in manager_leaves(directory).items():
        array = _open(directory, name, leaf)
        dtype, shape = str(array.dtype.name), tuple(array.shape)
        if leaf.is_number:
            dtype = type(np.zeros((), dtype).item()).__name__
        elif leaf.key_kind is not None:
            make = functools.partial(jax.random.key, 0, impl=leaf.key_kind)
            try:
                dtype, shape = str(jax.eval_shape(make).dtype), shape[:-1]
            except (TypeError, ValueError) as error:
                raise CheckpointDamagedError(
                    f"{directory}: {name} has PRNG keys of the unknown kind "
                    f"{leaf.key_kind!r}; restore another step"
                ) from error
        specs[name] = dtype, shape
    return specs


def read_through(directory: Path, part: int = 0, num_parts: int = 1) -> None:
    """Read a part of the leaves that an Orbax manager wrote, and drop the values.

    Without digests, only a read detects files that are missing or too short.

    Raises:
        CheckpointDamagedError: A leaf cannot be read.
    """
    for name, leaf in list(manager_leaves(directory).items())[part::num_parts]:
        _open(directory, name, leaf, read=True)


def _open(directory: Path, name: str, leaf: ManagerLeaf, *, read: bool = False) -> Any:
    """Open an array that an Orbax manager wrote, or read all of its values.

    This function uses TensorStore directly, so that verification and restore depend on
    the same parts of a step. Orbax's handler parses more of the step, opens all arrays
    at once and, after an error, prints a traceback for each.
    """
    import tensorstore

    store = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{directory / MANAGER_ITEM}/"},
        "path": f"{'.'.join(leaf.path)}/",
    }
    try:
        opened: Any = tensorstore.open({"driver": "zarr", "kvstore": store}).result()
        return opened.read().result() if read else opened
    except ValueError as error:
        if not is_of_files(error):
            raise CheckpointUnreadableError.because(directory, error) from error
        raise CheckpointDamagedError(
            f"{directory}: {name} cannot be read ({brief(error)}); restore another step"
        ) from error


def read_manager_arrays(
    directory: Path, targets: Mapping[str, jax.ShapeDtypeStruct | None]
) -> dict[str, Any]:
    """Read arrays of a step into shardings; a target of None reads numpy."""
    leaves = manager_leaves(directory)
    return {
        name: _read_into(_open(directory, name, leaves[name]), target)
        for name, target in targets.items()
    }


def _read_into(opened: Any, target: jax.ShapeDtypeStruct | None) -> Any:
    """Read an open array as numpy, or into a sharding."""
    import jax

    if target is None or target.sharding is None:
        return opened.read().result()
    read: dict[str, Any] = {}

    def block(index: Any) -> Any:
        # Devices that hold replicas request the same block.
        key = str(index)
        if key not in read:
            read[key] = opened[index].read().result()
        return read[key]

    return jax.make_array_from_callback(
        target.shape, target.sharding, block, dtype=target.dtype
    )


def _name_of(
    path: tuple[str, ...], children: Mapping[tuple[str, ...], set[str]]
) -> str:
    """Return the name that this package gives to a leaf in Orbax's tree."""
    inner = list(path[1:])
    # NNX stores the value of a Variable under the key `value`, which has no siblings. A
    # module may also have an attribute `value`. Its key is nearer to the root than the
    # key of the Variable, so the loop starts at the leaf.
    for depth in range(len(path) - 1, 0, -1):
        if path[depth] == "value" and len(children[path[:depth]]) == 1:
            del inner[depth - 1]
            break
    return "/".join([_ROOTS[path[0]], *map(escaped, inner)])


def _parsed_entry(entry: Any) -> tuple[tuple[str, ...], str | None]:
    """Return path and type of a leaf; the type of an empty node is None.

    Orbax stores no array for an empty node. Any error means that the file is damaged.
    """
    keys, value = entry["key_metadata"], entry["value_metadata"]
    path = tuple(key["key"] for key in keys)
    is_empty, value_type = value["skip_deserialize"], value["value_type"]
    are_keys = all(
        isinstance(key["key"], str) and key["key_type"] in _KEY_TYPES for key in keys
    )
    is_leaf = is_empty is False and len(path) >= 2 and value_type in _LEAF_TYPES
    if not path or not are_keys or not (is_leaf or is_empty is True):
        raise ValueError(f"{entry!r} is not an entry of Orbax")
    return path, value_type if is_leaf else None


def _key_kinds(directory: Path) -> dict[str, str]:
    """Map the dotted path of every PRNG key to the key's implementation."""
    kinds: dict[str, str] = {}
    folder = f"{MANAGER_ITEM}/array_metadatas"
    for each in names_in(directory / folder):
        name = f"{folder}/{each}"
        try:
            for entry in _json(directory, name)["array_metadatas"]:
                array = entry["array_metadata"]
                kind = (array["ext_metadata"] or {}).get("random_key_impl")
                if kind is not None:
                    kinds[array["param_name"]] = kind
        except (AttributeError, KeyError, TypeError) as error:
            raise _damaged(directory, name) from error
    return kinds


def _json(directory: Path, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text_of(directory / name)))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointDamagedError(
            f"{directory}: {name} is missing; restore another step"
        ) from error
    except (OSError, MemoryError) as error:
        raise CheckpointUnreadableError.because(directory, error) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(directory, name) from error


def _damaged(directory: Path, name: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"{directory}: {name} is damaged; restore another step"
    )
