"""Trains runs in several starts, and verifies intervals of them.

    verifying.py FOLDER ...

In each folder, `starts.json` lists the starts: a config, the step after which the start
ends, and whether a kill then takes its newest checkpoint. `intervals.json` lists the
steps to verify. The program prints one line of JSON for each interval.
"""

import json
import shutil
import sys
from pathlib import Path

from roxxel import verify
from roxxel.config import load_config, make_trainer
from roxxel_ckpt.coordination import process_index
from roxxel_train.distributed import barrier, initialize


def train(folder: Path) -> None:
    for config, until, is_lost in json.loads((folder / "starts.json").read_text()):
        make_trainer(load_config(folder / config)).run(until)
        barrier(f"{folder.name}: the start has ended")
        if is_lost and process_index() == 0:
            shutil.rmtree(folder / "run" / "checkpoints" / str(until))
        barrier(f"{folder.name}: the next start can begin")


def main(folders: list[str]) -> None:
    initialize()
    for folder in map(Path, folders):
        train(folder)
        for interval in json.loads((folder / "intervals.json").read_text()):
            for found in verify(folder / "run", range(*interval), trust=True):
                facts = found.is_equal, found.num_rows, found.num_saves
                if process_index() == 0:
                    print(json.dumps([folder.name, *facts, str(found)]), flush=True)


main(sys.argv[1:])
