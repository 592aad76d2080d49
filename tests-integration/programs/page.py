"""Runs what a page of documentation shows, in the order in which it stands there.

Arguments: the page. Blocks of `python` share their names; `sh` is run by bash; a block
whose first line is `# file: NAME` is written to that file. Blocks in other languages
(`text`, `console`) are what is seen, not what is run.
"""

import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# file: (\S+)\n")


def main(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        language, body = block.groups()
        line = text.count("\n", 0, block.start(2))
        named = FILE.match(body)
        if named:
            path = Path(named[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        elif language == "python":
            # Blank lines before, so that a traceback names the line of the page.
            exec(compile("\n" * line + body, page, "exec"), names)  # noqa: S102
        elif language == "sh":
            script = ["bash", "-euo", "pipefail", "-c", body]
            subprocess.run(script, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
