"""Loads a tokenizer by its path, or by its name on the Hugging Face hub.

`Roxxel.write` and `roxxel-format cat` call `load_tokenizer` where they are given a path
or a name. The format itself takes objects with `encode`, and bytes.
"""

from __future__ import annotations

import importlib
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from roxxel_format import ShardError
from roxxel_store import missing_extra
from roxxel_store.files import open_file, read_file
from roxxel_store.records import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_format import TokenizerBackend

__all__ = ["NamedTokenizer", "load_tokenizer"]

# A name on the Hugging Face hub: `model` or `organisation/model`.
_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
# Files beside a `tokenizer.json` that name its end of text; the first counts.
_NAMING_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_MAX_NAMING_SIZE = 1 << 26


class NamedTokenizer(NamedTuple):
    """A tokenizer that was loaded by its path or name.

    Attributes:
        tokenizer: An object of the library `tokenizers`.
        name: The name that a corpus records: that of the file, or of the hub.
        end_of_text: The end-of-text token that the files beside it name, if any.
        encoder: What encodes its texts, with versions, and why.

    Example:
        >>> named = NamedTokenizer(object(), "gpt2", "<|endoftext|>", "tokenizers 0.23")
        >>> named.end_of_text
        '<|endoftext|>'
    """

    tokenizer: Any
    name: str
    end_of_text: str | None
    encoder: str


def load_tokenizer(
    name: str | os.PathLike[str], backend: TokenizerBackend = "tokenizers"
) -> NamedTokenizer:
    """Load a tokenizer by its path, or by its name on the Hugging Face hub.

    You rarely call this yourself, because `Roxxel.write(..., tokenizer="gpt2")` does.

    Args:
        name: Path of a `tokenizer.json`, path of a folder with this file, or a name on
            the hub, which is asked once, and then its cache. An existing path is never
            read as a name.
        backend: What encodes.

    Raises:
        ModuleNotFoundError: The library `tokenizers` is missing, or the backend that
            you ask for.
        FileNotFoundError: There is no such file, and this is no name.
        ValueError: The file is no tokenizer, the hub does not give it, or the backend
            that you ask for cannot encode it.
    """
    try:
        library: Any = importlib.import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise missing_extra(
            f"tokenizer={os.fspath(name)!r}",
            *("tokenizers", "roxxel-prepare", "tokenizers"),
        ) from error
    path = _file_of(name)
    if path is not None:
        # Rejects a pipe: the library would block.
        os.close(open_file(path, ShardError))
    naming: Iterable[Path] = ()
    try:
        if path is None:
            # Imported here because most tokenizers are files.
            from roxxel_prepare._tokenize.hub import fetch

            file, naming = fetch(str(name), "tokenizer.json", _NAMING_FILES)
        else:
            file = path
        loaded = library.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{name}: cannot be loaded as a tokenizer ({reason}); pass the path of a "
            "tokenizer.json or a name on the Hugging Face hub"
        ) from error
    if path is None:
        loaded, encoder = _with_backend(loaded, str(name), backend)
        return NamedTokenizer(loaded, str(name), _end_named_by(naming), encoder)
    loaded, encoder = _with_backend(loaded, path.name, backend)
    if path.name == "tokenizer.json":
        beside = (path.parent / each for each in _NAMING_FILES)
        naming = (each for each in beside if each.exists())
    return NamedTokenizer(loaded, path.name, _end_named_by(naming), encoder)


def _with_backend(loaded: Any, name: str, backend: TokenizerBackend) -> tuple[Any, str]:
    """Return the tokenizer with the backend, and what encodes."""
    reference = f"tokenizers {version('tokenizers')}"
    if backend == "tokenizers":
        return loaded, reference
    # Imported here because few programs encode much text.
    from roxxel_prepare._tokenize.fast import FastTokenizer

    try:
        fast = FastTokenizer(loaded)
    except ModuleNotFoundError as error:
        missing = missing_extra(
            'tokenizer_backend="fastokens"', "fastokens", "roxxel-prepare", "fast"
        )
        if backend == "fastokens":
            raise missing from error
        _, _, command = str(missing).partition("install it: ")
        return loaded, f"{reference}; the extra fast encodes much faster: {command}"
    except ValueError as error:
        if backend == "fastokens":
            raise ValueError(
                f"{name}: fastokens cannot encode with this tokenizer ({error}); leave "
                "tokenizer_backend (--tokenizer-backend) out"
            ) from error
        return loaded, f"{reference}, because fastokens cannot ({error})"
    return fast, fast.encoder


def _end_named_by(files: Iterable[Path]) -> str | None:
    """Return the `eos_token` of the first file that has one."""
    for path in files:
        remedy = (
            "the tokenizer's end of text is in this file, so correct it, or remove it "
            "and pass separator"
        )
        data = read_file(path, _MAX_NAMING_SIZE, remedy=remedy)
        end = parse_object(data, str(path), remedy, ValueError).get("eos_token")
        if isinstance(end, dict):  # A token with its options.
            end = cast("dict[str, object]", end).get("content")
        if isinstance(end, str):
            return end
    return None


def _file_of(name: str | os.PathLike[str]) -> Path | None:
    """Return the file of a tokenizer; None for a name on the hub."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - as for corpora
    if path.is_dir():
        file = path / "tokenizer.json"
        if not file.exists():
            raise FileNotFoundError(
                f"{name}: the folder holds no tokenizer.json; pass a folder with this "
                "file, or the path of a tokenizer.json"
            )
        return file
    if path.exists():
        return path
    is_name = isinstance(name, str) and _HUB_NAME.fullmatch(name)
    if not is_name or path.suffix == ".json":
        raise FileNotFoundError(
            f"{name}: no such tokenizer file or folder; check the path"
        )
    return None
