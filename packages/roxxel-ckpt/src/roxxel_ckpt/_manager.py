"""Read what an Orbax `CheckpointManager` recorded about its checkpoints.

The first Roxxel saved with such a manager. A step has two items: `default`, the NNX
state of the tuple `(model, optimizer)`, and `metrics`, which holds the loss. This
package restores these checkpoints and never writes any. Their files have no digests.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_ckpt._folder import MANAGER_ITEM, escaped
from roxxel_ckpt._integrity import text_of
from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from pathlib import Path

# `Description.format` of a step that an Orbax manager wrote.
FORMAT_OF_MANAGER = 0
_ROOTS = {"0": "model", "1": "optimizer"}


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
        CheckpointDamagedError: A file is damaged, or the tree is not the state of
            `(model, optimizer)`.
    """
    name = f"{MANAGER_ITEM}/_METADATA"
    tree: Any = _json(directory, name).get("tree_metadata")
    try:
        entries = [
            (tuple(str(key["key"]) for key in entry["key_metadata"]), entry)
            for entry in tree.values()
        ]
        values = [
            (path, entry["value_metadata"]["value_type"])
            for path, entry in entries
            # An empty node of the tree has an entry but no array.
            if not entry["value_metadata"]["skip_deserialize"]
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise _damaged(directory, name) from error
    leaves: dict[str, ManagerLeaf] = {}
    kinds = _key_kinds(directory)
    for path, value_type in values:
        if path[0] not in _ROOTS:
            raise CheckpointDamagedError(
                f"{directory}: Orbax wrote {path[0]!r} here, which is not part of the "
                "state of (model, optimizer); restore another step"
            )
        # NNX stores the array of a Variable under the key `value`.
        inner = path[1:-1] if path[-1] == "value" else path[1:]
        leaves["/".join([_ROOTS[path[0]], *map(escaped, inner)])] = ManagerLeaf(
            path, value_type == "scalar", kinds.get(".".join(path))
        )
    return leaves


def _key_kinds(directory: Path) -> dict[str, str]:
    """Return the implementation of every PRNG key, by path joined with dots."""
    kinds: dict[str, str] = {}
    for file in sorted((directory / MANAGER_ITEM / "array_metadatas").glob("*")):
        name = file.relative_to(directory).as_posix()
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
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(directory, name) from error


def _damaged(directory: Path, name: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"{directory}: {name} is damaged; restore another step"
    )
