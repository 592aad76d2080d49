"""Runs what a page of documentation shows, in the order in which it stands there.

Arguments: the page. Blocks of `python` share their names; `sh` is run by bash; a block
whose first line is `# file: NAME` is written to that file. A `text` block under the
line `<!-- output -->` is what the block before it prints, `...` standing for anything.
Under `<!-- output, numbers vary -->`, numbers stand for any others: what the page shows
is whole, and of one machine. The other languages (`text`, `console`) are what is
seen, not what is run.
"""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

OUTPUT = re.compile(r"<!-- output(, numbers vary)? -->")
BLOCK = re.compile(
    rf"^({OUTPUT.pattern}\n)?```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE
)
_NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
NUMBERS = re.compile(rf"{_NUMBER}(?:, {_NUMBER})*")
FILE = re.compile(r"# file: (\S+)\n")


def main(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = {"__name__": "__main__"}
    printed = ""
    num_outputs = sum(bool(block[1]) for block in BLOCK.finditer(text))
    if len(OUTPUT.findall(text)) != num_outputs:
        raise SystemExit(f"{page}: an <!-- output --> stands above no block")
    for block in BLOCK.finditer(text):
        output, numbers_vary, language, body = block.groups()
        line = text.count("\n", 0, block.start(4))
        named = FILE.match(body)
        if output:
            where = f"{page}:{line}"
            check_output(printed, body, where, numbers_vary=bool(numbers_vary))
        elif named:
            path = Path(named[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        elif language == "python":
            # Blank lines before, so that a traceback names the line of the page.
            code = compile("\n" * line + body, page, "exec")
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(code, names)  # noqa: S102
            printed = stdout.getvalue()
        elif language == "sh":
            script = ["bash", "-euo", "pipefail", "-c", body]
            done = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True)
            printed = done.stdout


def check_output(printed: str, shown: str, where: str, *, numbers_vary: bool) -> None:
    def plain(text: str) -> str:
        folded = " ".join(text.split())  # a page may fold long lines
        return NUMBERS.sub("0", folded) if numbers_vary else folded

    pattern = ".*?".join(re.escape(part) for part in plain(shown).split("..."))
    if not re.fullmatch(pattern, plain(printed), re.DOTALL):
        message = f"{where}: the page shows\n\n{shown}\nbut this is printed:\n\n"
        raise SystemExit(message + printed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
