"""Stands for Slurm's `srun`: runs a command as the tasks of a step on this machine.

`ROXXEL_TEST_STEP` holds the variables of each task as JSON. `ROXXEL_TEST_LIMIT` is the
step of the first task after which every task gets SIGTERM, as at a time limit. Like
`srun`, this program ends with the highest exit code of its tasks.
"""

import json
import os
import re
import signal
import subprocess
import sys


def main(arguments: list[str]) -> int:
    command = [argument for argument in arguments if not argument.startswith("--kill")]
    tasks = [
        subprocess.Popen(command, env={**os.environ, **variables}, stderr=output)
        for variables, output in zip(
            json.loads(os.environ["ROXXEL_TEST_STEP"]),
            (subprocess.PIPE, None),
            strict=True,
        )
    ]
    limit = int(os.environ.get("ROXXEL_TEST_LIMIT", sys.maxsize))
    assert tasks[0].stderr is not None
    for line in tasks[0].stderr:
        sys.stderr.write(line.decode())
        step = re.match(rb"step +(\d+)/", line)
        if step is not None and int(step[1]) >= limit:
            limit = sys.maxsize
            for task in tasks:
                task.send_signal(signal.SIGTERM)
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
