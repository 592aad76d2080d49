"""Copy the steps of an Orbax `CheckpointManager` into a folder of checkpoints.

The first Roxxel, an older library of this name, saved its checkpoints with an Orbax
manager. A step has two items: `default`, the NNX state of the tuple
`(model, optimizer)`, and `metrics`, which holds the loss. The files have no digests, so
a value that changed before the copy is not found. A copy has digests.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import tensorstore
from roxxel_store.files import names_in, read_file
from roxxel_store.records import MAX_BYTES, parse_object

from roxxel_ckpt._arrays.orbax import versions
from roxxel_ckpt._names import leaf_name
from roxxel_ckpt._place.description import (
    Description,
    LeafSpec,
    Retention,
    checked_metrics,
    finished,
)
from roxxel_ckpt._place.opening import open_folder
from roxxel_ckpt._save.save import Save, begin_save
from roxxel_ckpt.coordination import Channel
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointUnreadableError,
    brief,
    is_of_files,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

_ITEM = "default"
# A manager may give its steps a prefix, or leading zeros.
_STEP = re.compile(r"(?:.*_)?([0-9]+)")
_TIMEOUT_S = 1000.0
_ROOTS = {"0": "model", "1": "optimizer"}
_TREE_FILE = f"{_ITEM}/_METADATA"
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


def import_steps(source: Path, target: str) -> Generator[tuple[Path, str | None]]:
    """Copy every step, oldest first; yield its directory, and why it was not copied.

    A step that the target holds already is not copied again.

    Args:
        source: Folder of an Orbax manager.
        target: Folder of checkpoints, as a path or a URL.

    Raises:
        CheckpointNotFoundError: The source holds no step of an Orbax manager.
    """
    found = (
        (_STEP.fullmatch(each.name), each)
        for each in (source.iterdir() if source.is_dir() else ())
    )
    steps = sorted((int(m[1]), e) for m, e in found if m and (e / _ITEM).is_dir())
    if not steps:
        raise CheckpointNotFoundError(
            f"{source}: holds no step of an Orbax CheckpointManager with the item "
            f"{_ITEM!r}; name the folder that was the manager's directory, or read "
            "other checkpoints with Orbax and save them by Checkpointer.save"
        )
    for number, directory in steps:
        try:
            _import_step(number, directory, target)
        except CheckpointDamagedError as error:
            yield directory, str(error).removeprefix(f"{directory}: ")
        else:
            yield directory, None


def _import_step(number: int, directory: Path, target: str) -> None:
    committed_at = _json(directory, "_CHECKPOINT_METADATA")
    if not isinstance(committed_at.get("commit_timestamp_nsecs"), int):
        raise CheckpointDamagedError(f"{directory}: Orbax did not commit this step")
    metrics: Any = _json(directory, "metrics/metrics")
    leaves = manager_leaves(directory)
    specs: dict[str, LeafSpec] = {}
    arrays: dict[str, Any] = {}
    for name, leaf in leaves.items():
        values = _read(directory, name, leaf)
        specs[name] = spec = _spec(directory, name, leaf, values)
        if spec.is_stored:
            as_bits = spec.is_stored_as_bits
            arrays[name] = (
                values.view(np.uint8)
                if as_bits
                else np.asarray(values, spec.stored_dtype)
            )
    folder = open_folder(target)
    base = max([number, *finished(folder)])  # newer steps stay where they are
    with contextlib.ExitStack() as held:
        attempt = begin_save(
            folder,
            Channel("import"),
            number,
            base,
            lambda: None,
            held,
            force=False,
            timeout_s=_TIMEOUT_S,
        )
        if attempt is None:
            return
        save = Save(
            folder,
            Description(number, checked_metrics(metrics), None, versions(), 0.0),
            specs,
            attempt,
            Retention(max_to_keep=None),
            _TIMEOUT_S,
            base,
            dict,
        )
        save.start(arrays, time.perf_counter(), held.pop_all())
    save.wait()


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
                "state of (model, optimizer)"
            )
        name = _name_of(path, children)
        if name in leaves:
            raise _damaged(directory, _TREE_FILE)
        place = ".".join(path)
        if place in places:
            raise CheckpointDamagedError(
                f"{directory}: Orbax stored {places[place]} and {name} under "
                "one name, so one of them is lost"
            )
        places[place] = name
        leaves[name] = ManagerLeaf(path, value_type == _NUMBER, kinds.get(place))
    return leaves


def _spec(directory: Path, name: str, leaf: ManagerLeaf, values: Any) -> LeafSpec:
    """Return shape and dtype of a leaf, as this package describes it."""
    dtype, shape = str(values.dtype.name), tuple(values.shape)
    if leaf.is_number:
        dtype = type(values.item()).__name__
    elif leaf.key_kind is not None:
        make = functools.partial(jax.random.key, 0, impl=leaf.key_kind)
        try:
            dtype, shape = str(jax.eval_shape(make).dtype), shape[:-1]
        except (TypeError, ValueError) as error:
            raise CheckpointDamagedError(
                f"{directory}: {name} has PRNG keys of the unknown kind "
                f"{leaf.key_kind!r}"
            ) from error
    return LeafSpec(shape, dtype)


def _read(directory: Path, name: str, leaf: ManagerLeaf) -> Any:
    """Read an array.

    This function uses TensorStore directly: Orbax's handler parses more of the step,
    opens all arrays at once and, after an error, prints a traceback for each.
    """
    store = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{directory / _ITEM}/"},
        "path": f"{'.'.join(leaf.path)}/",
    }
    try:
        opened: Any = tensorstore.open({"driver": "zarr", "kvstore": store}).result()
        return opened.read().result()
    except ValueError as error:
        if not is_of_files(error):
            raise CheckpointUnreadableError.because(directory, error) from error
        raise CheckpointDamagedError(
            f"{directory}: {name} cannot be read ({brief(error)})"
        ) from error


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
    return leaf_name([_ROOTS[path[0]], *inner])


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
    folder = f"{_ITEM}/array_metadatas"
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
        return parse_object(
            read_file(directory / name, MAX_BYTES), name, "copy it again"
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointDamagedError(f"{directory}: {name} is missing") from error
    except (OSError, MemoryError) as error:
        raise CheckpointUnreadableError.because(directory, error) from error
    except ValueError as error:
        raise _damaged(directory, name) from error


def _damaged(directory: Path, name: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(f"{directory}: {name} is damaged")
