"""A bucket server in a process of its own: that of the tests of roxxel-format."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_FILE = Path(__file__).parents[3] / "roxxel-format/tests/extras/buckets.py"


class Bucket(Protocol):
    """The bucket `data` of a running server; its objects are the files of `folder`."""

    folder: Path
    port: int
    address: str

    def set_faults(self, **faults: Any) -> None:
        """Set what goes wrong from now on, and set the statistics to zero."""

    def stats(self) -> dict[str, int]:
        """Return the statistics since the last `set_faults`."""
        ...


def running_bucket(folder: Path) -> AbstractContextManager[Bucket]:
    """Run a server; this process and its children find it by their environment."""
    spec = spec_from_file_location("roxxel_buckets_of_tests", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.get(spec.name)
    if module is None:
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.running_bucket(folder)
