"""Whether this machine can have credentials for Google Cloud Storage.

Without credentials, the client requests them from the metadata server of Google's
machines. On any other machine, such requests fail only after many minutes.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

_VARIABLES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SKIP_SIGNATURE",
)
_LOGIN_FILE = ".config/gcloud/application_default_credentials.json"
_METADATA_HOST = "metadata.google.internal"
_PROBE_S = 3.0
_NUM_PROBES = 3


def find_google_problem() -> str | None:
    """Describe why Google's buckets cannot be used; None if credentials may exist.

    The metadata server may be busy at the start of a large job, so this function
    contacts the server several times.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return None
    home = os.environ.get("HOME")
    if home and Path(home, _LOGIN_FILE).exists():
        return None
    host = os.environ.get("GCE_METADATA_HOST") or _METADATA_HOST
    if _answers(host):
        return None
    return (
        "there are no credentials for Google Cloud Storage, and this is not one of "
        "Google's machines; set GOOGLE_APPLICATION_CREDENTIALS to a file of "
        "credentials, or run: gcloud auth application-default login"
    )


@cache
def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    for _ in range(_NUM_PROBES):
        try:
            with socket.create_connection((host, int(port or 80)), _PROBE_S):
                return True
        except (OSError, ValueError):
            continue
    return False
