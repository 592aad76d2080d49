"""The modules in a config's folder belong to that config."""

from __future__ import annotations

import inspect
import pickle
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from roxxel.config import load_config

from .helpers import make_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from roxxel.config import RunConfig

CONFIG = """
model = "made:make"
sources = { self = "none.rox" }
phases = [{ steps = 1, batch_size = 1, seq_len = 2 }]
"""
RETURNED = "\ndef make():\n    return width, None, None\n"

FORMS = {
    "a module": ("from helper import WIDTH\nwidth = lambda: WIDTH", "helper.py"),
    "a name of a module": ("import helper as h\nwidth = lambda: h.WIDTH", "helper.py"),
    "everything": ("from helper import *\nwidth = lambda: WIDTH", "helper.py"),
    "a submodule": ("import kit.sub\nwidth = lambda: kit.sub.WIDTH", "kit/sub.py"),
    "a package": ("from kit import sub\nwidth = lambda: sub.WIDTH", "kit/sub.py"),
    "a deep name": ("import kit.sub as s\nwidth = lambda: s.WIDTH", "kit/sub.py"),
    "during training": (
        "def width():\n    from helper import WIDTH\n    return WIDTH",
        "helper.py",
    ),
    "by importlib": (
        "import importlib\nwidth = lambda: importlib.import_module('helper').WIDTH",
        "helper.py",
    ),
    "by its function": (
        "from importlib import import_module as f\nwidth = lambda: f('kit.sub').WIDTH",
        "kit/sub.py",
    ),
    "by __import__": ("width = lambda: __import__('helper').WIDTH", "helper.py"),
    "in a text": (
        "x = {}\nexec('import helper', x)\nwidth = lambda: x['helper'].WIDTH",
        "helper.py",
    ),
    "like the standard library's": (
        "from queue import WIDTH\nwidth = lambda: WIDTH",
        "queue.py",
    ),
    "like an installed one": (
        "from msgspec import WIDTH\nwidth = lambda: WIDTH",
        "msgspec/__init__.py",
    ),
}


def write(folder: Path, files: Mapping[str, str]) -> RunConfig:
    for name, text in {"run.toml": CONFIG, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_config(folder / "run.toml")


@pytest.mark.parametrize("has_init", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_imported_is_that_of_the_config_s_own_folder(
    tmp_path: Path, form: str, has_init: bool
) -> None:
    text, file = FORMS[form]
    before = dict(sys.modules)
    configs: list[RunConfig] = []
    for width in (4, 12):
        files = {"made.py": text + RETURNED, file: f"WIDTH = {width}\n"}
        if has_init and "/" in file:
            files.setdefault("kit/__init__.py", "")
        configs.append(write(tmp_path / str(width), files))

    made = [make_model(config) for config in configs]
    # Both are alive, and used in turn.
    assert [width() for width in made * 2] == [4, 12, 4, 12]
    assert [make_model(config)() for config in configs] == [4, 12]
    for name in ("made", "helper", "kit", "queue", "msgspec"):
        assert sys.modules.get(name) is before.get(name)


def test_relative_imports_of_a_package_stay_in_it(tmp_path: Path) -> None:
    made: list[Any] = []
    for width in (4, 12):
        files = {
            "made.py": "from kit.deep.most import width" + RETURNED,
            "kit/__init__.py": "",
            "kit/deep/__init__.py": "",
            "kit/deep/most.py": "from ..sub import WIDTH\nfrom . import near\n"
            "width = lambda: (WIDTH, near.WIDTH)",
            "kit/deep/near.py": f"WIDTH = -{width}\n",
            "kit/sub.py": f"WIDTH = {width}\n",
        }
        made.append(make_model(write(tmp_path / str(width), files)))

    assert [width() for width in made] == [(4, -4), (12, -12)]


def test_a_relative_import_names_a_file_of_the_folder(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        {"made.py": "from .helper import width" + RETURNED, "helper.py": "width = 4"},
    )

    assert make_model(config) == 4


def test_a_folder_without_code_hides_no_installed_package(tmp_path: Path) -> None:
    files = {"made.py": "import msgspec, numpy\nwidth = msgspec.json" + RETURNED}
    config = write(tmp_path, {**files, "msgspec/notes": "", "numpy/a.npy": ""})

    assert make_model(config).__name__ == "msgspec.json"


def test_installed_packages_do_not_see_the_files_of_a_folder(tmp_path: Path) -> None:
    text = "import fractions, random as mine\nwidth = (mine.MINE, fractions)"
    config = write(tmp_path, {"made.py": text + RETURNED, "random.py": "MINE = 3\n"})

    found, fractions = make_model(config)

    import random

    assert found == 3
    assert fractions is sys.modules["fractions"]
    assert random.random() < 1


def test_classes_of_a_folder_can_be_pickled_and_read(tmp_path: Path) -> None:
    text = """
from __future__ import annotations
import dataclasses
from typing import ClassVar
from flax import nnx

@dataclasses.dataclass
class Sizes:
    width: ClassVar[int] = {}
    depth: int = 2

class Model(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(0.5)

def width():
    return Sizes(), nnx.graphdef(Model())
"""
    configs = [
        write(tmp_path / str(width), {"made.py": text.format(width) + RETURNED})
        for width in (4, 12)
    ]
    made = [make_model(config) for config in configs]

    for width, function in zip((4, 12), made, strict=True):
        sizes, graph = function()
        sent = pickle.dumps((sizes, graph))
        again, graph_again = pickle.loads(sent)  # noqa: S301 - our own bytes
        assert type(again) is type(sizes)
        assert again.width == width
        assert graph_again == graph
        assert f"width: ClassVar[int] = {width}" in inspect.getsource(type(sizes))
    # Another load of the same files has the same classes.
    assert make_model(configs[0]) is made[0]


@pytest.mark.parametrize("edited", ["made.py", "helper.py", "kit/sub.py"])
def test_an_edited_file_is_imported_anew(tmp_path: Path, edited: str) -> None:
    files = {
        "made.py": "from helper import A\nfrom kit.sub import B\nC = 1\n"
        "width = lambda: (A, B, C)" + RETURNED,
        "helper.py": "A = 1\n",
        "kit/sub.py": "B = 1\n",
    }
    config = write(tmp_path, files)
    first = make_model(config)
    # Of the same size, and within one tick of many clocks.
    (tmp_path / edited).write_text(files[edited].replace(" = 1", " = 2"))

    second = make_model(config)

    assert sorted(second()) == [1, 1, 2]
    assert first() == (1, 1, 1)


def test_a_new_file_in_the_folder_is_found(tmp_path: Path) -> None:
    text = "try:\n    from helper import A\nexcept ImportError:\n    A = 0\nwidth = A"
    config = write(tmp_path, {"made.py": text + RETURNED})
    assert make_model(config) == 0

    (tmp_path / "helper.py").write_text("A = 3\n")

    assert make_model(config) == 3


def test_threads_load_configs_at_the_same_time(tmp_path: Path) -> None:
    widths = range(8)
    configs = [
        write(
            tmp_path / str(width),
            {
                "made.py": "from helper import WIDTH as width" + RETURNED,
                "helper.py": f"WIDTH = {width}\n",
            },
        )
        for width in widths
    ]
    together = threading.Barrier(len(widths))

    def load(config: RunConfig) -> Any:
        together.wait()
        return make_model(config)

    with ThreadPoolExecutor(len(widths)) as pool:
        assert [*pool.map(load, configs)] == [*widths]


def test_an_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    files = {
        "made.py": "import helper" + RETURNED,
        "helper.py": "class Bad(ValueError): pass\n\nraise Bad('no width')\n",
    }
    with pytest.raises(ValueError, match="no width") as caught:
        make_model(write(tmp_path / "a.b", files))

    text = "".join(traceback.format_exception(caught.value))
    assert f'File "{tmp_path}/a.b/helper.py", line 3' in text
    assert "raise Bad('no width')" in text
    assert type(caught.value).__module__.endswith(".helper")


def test_a_missing_import_of_the_model_is_its_own_error(tmp_path: Path) -> None:
    config = write(tmp_path, {"made.py": "import not_there" + RETURNED})

    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there'"):
        make_model(config)
