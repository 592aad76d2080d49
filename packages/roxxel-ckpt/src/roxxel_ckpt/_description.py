"""What a checkpoint says about itself, readable without JAX and without Orbax.

Two JSON files lie beside the arrays: `meta/metadata` holds step, metrics, `extra` and
versions, `tree/metadata` name, shape and dtype of every leaf.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roxxel_ckpt._folder import META_FILE, TREE_FILE
from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from etils import epath

    from roxxel_ckpt._folder import Folder

    Described = tuple[Mapping[str, Any] | None, dict[str, Any] | None]

# Of the two files and of how arrays are named and stored.
FORMAT = 1
# Python numbers are stored as the widest numpy number of their kind.
_NUMBER_BITS = {"bool": 8, "int": 64, "float": 64, "complex": 128}


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    """Shape and dtype of a leaf, without its values.

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
        """Bytes of all values; None for PRNG keys, whose size is JAX's business."""
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
        meta: Format, step, metrics, extra and versions; JSON can hold it.
        specs: Shape and dtype of every leaf, by name.
    """

    meta: dict[str, Any]
    specs: Mapping[str, LeafSpec]

    def write(self, place: epath.Path) -> None:
        """Write both files below a directory; their digests come after.

        Raises:
            OSError: One cannot be written.
        """
        leaves = {name: [s.dtype, list(s.shape)] for name, s in self.specs.items()}
        for name, content in ((META_FILE, self.meta), (TREE_FILE, {"leaves": leaves})):
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))


def describer(
    step: int,
    versions: dict[str, str],
    metrics_dict: Mapping[str, Any] | None,
    extra: dict[str, Any] | None,
    describe: Callable[[], Described] | None,
) -> Callable[[], dict[str, Any]]:
    """Return what gives the metadata of a step; what is known now is checked now.

    Args:
        step: Of the checkpoint.
        versions: Of the libraries that write it.
        metrics_dict: Numbers of the step, or None.
        extra: What the user wants kept, or None.
        describe: Gives the two later, in their place.

    Raises:
        TypeError: JSON cannot hold it, or `describe` is no function.
        ValueError: The step is described twice.
    """

    def meta(said: Described) -> dict[str, Any]:
        metrics, kept = said
        return {
            "format": FORMAT,
            "step": step,
            "metrics": metrics_to_json({} if metrics is None else metrics),
            "extra": checked_json(kept),
            "versions": versions,
        }

    if describe is None:
        known = meta((metrics_dict, extra))
        return lambda: known
    if metrics_dict is not None or extra is not None:
        raise ValueError("describe returns metrics_dict and extra; give only it")
    if not callable(describe):
        raise TypeError(f"describe must be a function, got {describe!r}")

    def ask() -> dict[str, Any]:
        said: Any = describe()
        if not isinstance(said, tuple) or len(said) != 2:
            raise TypeError(f"describe must return (metrics_dict, extra), got {said!r}")
        return meta(said)

    return ask


def read_meta(place: epath.Path) -> dict[str, Any]:
    """Return step, metrics, extra and versions of a checkpoint.

    Raises:
        CheckpointDamagedError: They are missing or cannot be understood.
    """
    meta = _read_json(place, META_FILE)
    if not isinstance(meta.get("format"), int):
        raise CheckpointDamagedError(
            f"{place}: {META_FILE} is none of roxxel-ckpt; "
            "the directory holds something else"
        )
    return meta


def read_tree(place: epath.Path) -> dict[str, LeafSpec]:
    """Return shape and dtype of every leaf of a checkpoint, by name.

    Raises:
        CheckpointDamagedError: They are missing or cannot be understood.
    """
    try:
        return {
            name: LeafSpec(tuple(shape), dtype)
            for name, (dtype, shape) in _read_json(place, TREE_FILE)["leaves"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointDamagedError(
            f"{place}: {TREE_FILE} cannot be understood; restore another step"
        ) from error


def _read_json(place: epath.Path, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((place / name).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointDamagedError(
            f"{place}: {name} cannot be read ({error}); restore another step"
        ) from error


def metrics_of_all(folder: Folder) -> dict[int, dict[str, float]]:
    """Return the metrics of every step; none for one that cannot be read."""
    found: dict[int, dict[str, float]] = {}
    for step in folder.steps():
        found[step] = {}
        with contextlib.suppress(CheckpointDamagedError):
            found[step] = metrics_from_json(read_meta(folder.step_path(step)))
    return found


def metrics_to_json(metrics: Mapping[str, Any]) -> dict[str, float | str]:
    """Return metrics for JSON, which has no NaN and no infinity; None is left out.

    Raises:
        TypeError: They are no dict of numbers.
    """
    if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a lone loss is an easy mistake
        raise TypeError(
            f"metrics_dict must be a dict of numbers, got {type(metrics).__name__}; "
            'write {"loss": ...}'
        )
    stored: dict[str, float | str] = {}
    for name, value in metrics.items():
        if value is None:
            continue
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"metrics_dict[{name!r}] must be a number, got {type(value).__name__}"
            ) from error
        stored[str(name)] = number if math.isfinite(number) else str(number)
    return stored


def metrics_from_json(meta: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a checkpoint's description."""
    try:
        return {name: float(value) for name, value in meta["metrics"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointDamagedError(
            "the metrics of a checkpoint cannot be understood"
        ) from error


def checked_json(extra: dict[str, Any] | None) -> dict[str, Any] | None:
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
