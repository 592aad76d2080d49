"""`data.json`, the record of a run's data, which every start writes.

`data.json` holds the paths of the corpora, and the state of the sampler at the last
planned step, which determines all batches of the run. From this file alone a program
can compute every past and planned batch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from roxxel_format import Roxxel

from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_curriculum import Curriculum, Sampler

DATA = "data.json"
_VERSION = 1


def data_record(sampler: Sampler, curriculum: Curriculum) -> dict[str, Any]:
    """Return the content of `data.json`.

    The path of a source is absolute, a list of paths, or a URL; None if the reader of
    the source is not a `Roxxel`. The paths call the primary `"self"`, as the state
    does. The key `primary` has the primary's own name, if the curriculum gives one.
    """
    named = curriculum.primary != "self"
    readers = {"self": curriculum.primary_streamer, **curriculum.mix_streamers}
    return {
        "version": _VERSION,
        "sources": {
            name: reader.filepath if isinstance(reader, Roxxel) else None
            for name, reader in readers.items()
        },
        **({"primary": curriculum.primary} if named else {}),
        "state": sampler.state(sampler.total_steps),
    }


def read_data_record(folder: Path) -> dict[str, Any] | None:
    """Return the content of `data.json`; None if the file does not exist.

    Raises:
        RunMismatchError: The file is damaged or of another version.
    """
    path = folder / DATA
    if not path.exists():
        return None
    if not path.is_file():  # opening a named pipe would block
        raise RunMismatchError(
            f"{path}: is not a regular file, so it is not the record of a run's data; "
            "restore the file, or resume the run, which writes the file again"
        )
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        version, _, _ = (content[key] for key in ("version", "sources", "state"))
        primary = content.get("primary", "self")
        if not isinstance(primary, str) or not primary:
            raise TypeError(f"primary is {primary!r}")  # noqa: TRY301 - as a missing key
    except (ValueError, KeyError, TypeError) as error:
        raise RunMismatchError(
            f"{path}: is not the record of a run's data ({error!r}); restore the file, "
            "or resume the run, which writes the file again"
        ) from error
    if version != _VERSION:
        raise RunMismatchError(
            f"{path}: has version {version}, but this release reads {_VERSION}; "
            "read the run with the version of roxxel-train that trained last"
        )
    return content
