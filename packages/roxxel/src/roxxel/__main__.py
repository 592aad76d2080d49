"""`python -m roxxel` is the `roxxel` command."""

from __future__ import annotations

import sys

from roxxel.cli import main

if __name__ == "__main__":
    sys.exit(main())
