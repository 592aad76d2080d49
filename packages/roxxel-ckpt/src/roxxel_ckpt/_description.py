"""The description of a checkpoint: JSON that is read without JAX and without Orbax.

`checkpoint.json` holds step, metrics, `extra`, versions, name, shape and dtype of every
leaf, and the digest of each process's file of digests. Process 0 writes it last, so the
file commits the step. Version 0.1 wrote `meta/metadata` and `tree/metadata` instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roxxel_ckpt._folder import (
    COMMIT_FILE,
    V1_DIGESTS_FILE,
    V1_META_FILE,
    V1_TREE_FILE,
    digests_file,
)
from roxxel_ckpt._integrity import (
    FileDigest,
    crc_of,
    digests_from_json,
    sealed,
    unsealed,
)
from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roxxel_ckpt._folder import Folder

    Described = tuple[Mapping[str, Any] | None, dict[str, Any] | None]

# Of the description, and of how arrays are named and stored.
FORMAT = 2
# A Python number is stored as the widest numpy number of its kind.
_NUMBER_BITS = {"bool": 8, "int": 64, "float": 64, "complex": 128}


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    """Shape and dtype of a leaf.

    Attributes:
        shape: As in numpy; of a typed PRNG key, the shape of the array of keys.
        dtype: Name of the dtype, such as `bfloat16`; `key<fry>` for a typed PRNG key;
            `int`, `float`, `bool` or `complex` for a Python number.
    """

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @property
    def is_key(self) -> bool:
        """Whether the leaf holds typed PRNG keys."""
        return self.dtype.startswith("key<")

    @property
    def num_bytes(self) -> int | None:
        """Bytes of all values; None for PRNG keys, whose size JAX decides."""
        if self.is_key:
            return None
        bits = _NUMBER_BITS.get(self.dtype)
        if bits is None:
            # float32, bfloat16, float8_e4m3fn: the first number is the width in bits.
            found = re.search(r"\d+", self.dtype)
            bits = int(found[0]) if found else 8
        return math.prod(self.shape) * max(bits, 8) // 8

    @property
    def is_stored(self) -> bool:
        """Whether the leaf has bytes; Orbax does not store arrays of size zero."""
        return 0 not in self.shape


@dataclasses.dataclass(frozen=True)
class Description:
    """What a checkpoint says about itself.

    Attributes:
        step: Number of updates done.
        metrics: Numbers that were saved with the step.
        extra: JSON object that was saved with the step; None without one.
        versions: Version of each library that wrote the checkpoint, by name.
        saved_at: Seconds since 1970, when the step was committed.
        format: Version of the layout on disk.
        digests: CRC-32 of each process's digests, by process; empty before format 2.
    """

    step: int
    metrics: Mapping[str, float]
    extra: dict[str, Any] | None
    versions: Mapping[str, str]
    saved_at: float
    format: int = FORMAT
    digests: tuple[int, ...] = ()

    def to_json(self, specs: Mapping[str, LeafSpec]) -> str:
        """Return the text of `checkpoint.json`, with shape and dtype of every leaf."""
        body = dataclasses.asdict(self)
        body["metrics"] = {
            name: value if math.isfinite(value) else str(value)
            for name, value in self.metrics.items()
        }
        body["leaves"] = {name: [s.dtype, list(s.shape)] for name, s in specs.items()}
        # JSON has lists only, and the seal compares what is read with what was written.
        return sealed(json.loads(json.dumps(body)))


def read_description(directory: Path) -> Description:
    """Read what a checkpoint says about itself; needs neither JAX nor Orbax.

    Args:
        directory: Directory of the step.

    Raises:
        CheckpointDamagedError: The description is missing or damaged.
    """
    body = _read(directory, V1_META_FILE)
    try:
        saved_at = body.get("saved_at")
        if saved_at is None:
            saved_at = (directory / V1_META_FILE).stat().st_mtime
        return Description(
            step=body["step"],
            metrics={name: float(value) for name, value in body["metrics"].items()},
            extra=body["extra"],
            versions=body.get("versions", {}),
            saved_at=saved_at,
            format=int(body["format"]),
            digests=tuple(body.get("digests", ())),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointDamagedError(
            f"{directory}: this is not a description of roxxel-ckpt ({error!r}); "
            "restore another step"
        ) from error


def read_leaves(directory: Path) -> dict[str, LeafSpec]:
    """Return shape and dtype of every leaf of a checkpoint, by name.

    Raises:
        CheckpointDamagedError: The description is missing or damaged.
    """
    body = _read(directory, V1_TREE_FILE)
    try:
        return {
            name: LeafSpec(tuple(shape), dtype)
            for name, (dtype, shape) in body["leaves"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointDamagedError(
            f"{directory}: the list of leaves is damaged; restore another step"
        ) from error


def read_digests(directory: Path, description: Description) -> dict[str, FileDigest]:
    """Return the digests of all files of a checkpoint, by name.

    Raises:
        CheckpointDamagedError: Digests are missing or are not those of this commit.
    """
    if is_version_1(directory):
        return digests_from_json(unsealed(directory, V1_DIGESTS_FILE))
    digests: dict[str, FileDigest] = {}
    for process, crc in enumerate(description.digests):
        name = digests_file(process)
        body = unsealed(directory, name)
        if crc_of(body) != crc:
            raise CheckpointDamagedError(
                f"{directory}: {name} is of another commit; restore another step"
            )
        digests.update(digests_from_json(body))
    return digests


def is_version_1(directory: Path) -> bool:
    """Return whether version 0.1 wrote a step."""
    return (directory / V1_META_FILE).exists() and not (
        directory / COMMIT_FILE
    ).exists()


def _read(directory: Path, v1_name: str) -> dict[str, Any]:
    if not is_version_1(directory):
        return unsealed(directory, COMMIT_FILE)
    try:
        return dict(json.loads((directory / v1_name).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointDamagedError(
            f"{directory}: {v1_name} cannot be read ({error}); restore another step"
        ) from error


def descriptions(folder: Folder) -> dict[int, Description]:
    """Return the description of every step; an empty one where it is damaged."""
    found: dict[int, Description] = {}
    for step in folder.steps():
        found[step] = Description(step, {}, None, {}, -math.inf)
        with contextlib.suppress(CheckpointDamagedError):
            found[step] = read_description(folder.step_path(step))
    return found


def describer(
    metrics_dict: Mapping[str, Any] | None,
    extra: dict[str, Any] | None,
    describe: Callable[[], Described] | None,
) -> Callable[[], tuple[dict[str, float], dict[str, Any] | None]]:
    """Return a function that gives metrics and `extra`; check now what is known now.

    Args:
        metrics_dict: As for `Checkpointer.save`.
        extra: As for `Checkpointer.save`.
        describe: As for `Checkpointer.save`.

    Raises:
        TypeError: JSON cannot hold an argument, or `describe` is not a function.
        ValueError: The step is described twice.
    """
    if describe is None:
        known = _checked_metrics(metrics_dict), _checked_json(extra)
        return lambda: known
    if metrics_dict is not None or extra is not None:
        raise ValueError("describe returns metrics_dict and extra; give describe alone")
    if not callable(describe):
        raise TypeError(f"describe must be a function, got {describe!r}")

    def described() -> tuple[dict[str, float], dict[str, Any] | None]:
        result: Any = describe()
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                f"describe must return (metrics_dict, extra), got {result!r}"
            )
        return _checked_metrics(result[0]), _checked_json(result[1])

    return described


def _checked_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Return metrics as floats, without those that are None.

    Raises:
        TypeError: They are not a dict of numbers.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a lone loss is an easy mistake
        raise TypeError(
            f"metrics_dict must be a dict of numbers, got {type(metrics).__name__}; "
            'write {"loss": ...}'
        )
    checked: dict[str, float] = {}
    for name, value in metrics.items():
        if value is None:
            continue
        try:
            checked[str(name)] = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"metrics_dict[{name!r}] must be a number, got {type(value).__name__}"
            ) from error
    return checked


def _checked_json(extra: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a copy of `extra` as it will be read back.

    Raises:
        TypeError: JSON cannot hold it.
    """
    try:
        return json.loads(json.dumps(extra))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"extra must be a dict that JSON can hold ({error}); "
            "put arrays into a Variable of the model instead"
        ) from error
