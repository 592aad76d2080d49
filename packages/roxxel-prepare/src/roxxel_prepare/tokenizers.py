"""Loads a tokenizer by its path, or by its name on the Hugging Face hub.

`Roxxel.write` and `roxxel-format cat` call `load_tokenizer` if they get a path or a
name. `roxxel_format` alone accepts objects with `encode`, and `"bytes"`.

After a refused connection, the hub's library tries again for half a minute, and for
minutes if a firewall drops packets, even if its cache holds the file. A node of a
cluster often cannot reach the hub, so this module asks once, and then uses the cache.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from roxxel_format import ShardError
from roxxel_format.texts import FILES_BESIDE, without_sampling
from roxxel_store import missing_extra
from roxxel_store.errors import reason_of
from roxxel_store.files import open_file, read_file
from roxxel_store.records import parse_object
from roxxel_store.urls import expanded

from roxxel_prepare._tokenize.chats import ChatTemplate, chat_encoder

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from roxxel_format import TokenizerBackend

__all__ = [
    "NamedTokenizer",
    "chat_encoder",
    "load_chat",
    "load_tokenizer",
    "parse_tokenizer",
]

# A name on the Hugging Face hub: `model` or `organisation/model`.
_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
# Files beside a `tokenizer.json` that name its end of text; the first counts.
_NAMING_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_NAMED_TOKENS = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_CONFIG, _TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
_MAX_NAMING_SIZE = 1 << 26
_TIMEOUT_S = 10


class NamedTokenizer(NamedTuple):
    """A tokenizer that was loaded by its path or name.

    Attributes:
        tokenizer: An object of the library `tokenizers`.
        name: The name that a corpus records: the file's, or the hub's.
        end_of_text: The end-of-text token that the files beside it name, if any.
        encoder: The library that encodes its texts, with versions; a corpus records it.
        note: A remark on the encoder: why it is not a faster one.
        switched_off: What is random in its file, such as `dropout 0.1`, and was
            switched off.
        files: The texts, by name, of the files next to it that say how it is used.

    Example:
        >>> named = NamedTokenizer(object(), "gpt2", "<|endoftext|>", "tokenizers 0.23")
        >>> named.end_of_text
        '<|endoftext|>'
    """

    tokenizer: Any
    name: str
    end_of_text: str | None
    encoder: str
    note: str = ""
    switched_off: str = ""
    files: Mapping[str, str] = MappingProxyType({})


def load_tokenizer(
    name: str | os.PathLike[str], backend: TokenizerBackend = "tokenizers"
) -> NamedTokenizer:
    """Load a tokenizer by its path, or by its name on the Hugging Face hub.

    You rarely call this yourself, because `Roxxel.write(..., tokenizer="gpt2")` does.

    Args:
        name: Path of a `tokenizer.json`, path of a folder with this file, or a name on
            the hub. The hub is asked once; if it cannot be reached, its local cache
            serves. An existing path is never read as a name.
        backend: What encodes.

    Raises:
        ModuleNotFoundError: The library `tokenizers`, or the requested backend, is
            missing.
        FileNotFoundError: There is no such file, and the text cannot be a name on the
            hub.
        ValueError: The file is not a tokenizer, the hub does not give it, or the
            requested backend does not support it.
    """
    library = _library(f"tokenizer={os.fspath(name)!r}")
    path = _file_of(name)
    if path is not None:
        # Rejects a pipe: the library would block.
        os.close(open_file(path, ShardError))
    try:
        file, beside = _with_beside(name, path)
        loaded = library.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(
            f"{name}: cannot be loaded as a tokenizer ({reason_of(error)}); pass the "
            "path of a tokenizer.json or a name on the Hugging Face hub"
        ) from error
    loaded, switched_off = without_sampling(loaded)
    known_as = str(name) if path is None else path.name
    loaded, encoder, note = _with_backend(loaded, known_as, backend)
    end = _end_named_by(each for each in beside if each.name in _NAMING_FILES)
    files = {each.name: _text_of(each) for each in beside}
    return NamedTokenizer(loaded, known_as, end, encoder, note, switched_off, files)


def parse_tokenizer(definition: str, name: str) -> Any:
    """Return a tokenizer, an object of the library `tokenizers`, from its definition.

    You rarely call this yourself, because `text_codec(corpus)` does.

    Args:
        definition: Content of a `tokenizer.json`.
        name: What messages call the tokenizer.

    Raises:
        ModuleNotFoundError: The library `tokenizers` is missing.
        ValueError: The library cannot load it.
    """
    library = _library("the text of this corpus")
    try:
        return library.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(
            f"{name}: the tokenizer.json that is kept with the corpus cannot be loaded "
            f"({reason_of(error)}); update the library tokenizers"
        ) from error


def _library(what: str) -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise missing_extra(
            what, "tokenizers", "roxxel-prepare", "tokenizers"
        ) from error


def _with_backend(
    loaded: Any, name: str, backend: TokenizerBackend
) -> tuple[Any, str, str]:
    """Return the tokenizer with the backend, the encoder's name, and a note on it."""
    reference = f"tokenizers {version('tokenizers')}"
    if backend == "tokenizers":
        return loaded, reference, ""
    # Imported here because few programs encode much text.
    from roxxel_prepare._tokenize.fast import FastTokenizer

    try:
        fast = FastTokenizer(loaded)
    except ModuleNotFoundError as error:
        if backend == "fastokens":
            raise missing_extra(
                'tokenizer_backend="fastokens"', "fastokens", "roxxel-prepare", "fast"
            ) from error
        note = "; the extra fast of roxxel-prepare encodes much faster"
        return loaded, reference, note
    except ValueError as error:
        if backend == "fastokens":
            raise ValueError(
                f"{name}: fastokens cannot encode with this tokenizer ({error}); leave "
                "tokenizer_backend (--tokenizer-backend) out"
            ) from error
        return loaded, reference, f", because fastokens cannot ({error})"
    return fast, fast.encoder, ""


def load_chat(
    name: str | os.PathLike[str] | None,
    template: str | os.PathLike[str] | None,
    refused: tuple[str, ...],
) -> ChatTemplate:
    """Load the chat template of a tokenizer, or of a file.

    You rarely call this yourself, because `Roxxel.write(..., chat=True)` does.

    Args:
        name: Path or name of the tokenizer; see `load_tokenizer`. None for an object,
            which has no files.
        template: Path of a template. Default: that of the tokenizer.
        refused: Texts that no message may contain, such as those of special tokens.

    Raises:
        FileNotFoundError: There is no such file.
        ModuleNotFoundError: The library `jinja2` is missing.
        ValueError: The tokenizer has no template, or it is damaged.
    """
    beside = [] if name is None else _with_beside(name, _file_of(name))[1]
    tokens: dict[str, str] = {}
    found: list[tuple[str, object]] = []
    for path in beside:
        if path.name == _TEMPLATE_FILE:
            found.insert(0, (str(path), _text_of(path)))
        if path.name not in _NAMING_FILES:
            continue
        table = _named_by(path)
        for token in _NAMED_TOKENS:
            text = _token_text(table.get(token))
            if text is not None:
                tokens.setdefault(token, text)
        if path.name == _CONFIG and table.get("chat_template") is not None:
            found.append((str(path), table["chat_template"]))
    if template is not None:
        found = [(os.fspath(template), _text_of(Path(template)))]
    if not found:
        what = "the tokenizer" if name is None else os.fspath(name)
        raise ValueError(
            f"{what}: has no chat template, which {_TEMPLATE_FILE} or {_CONFIG} beside "
            "it would hold; pass the path of a template as chat (--chat)"
        )
    where, text = found[0]
    return ChatTemplate.checked(where, text, tokens, refused)


def _text_of(path: Path) -> str:
    remedy = "pass the path of a template as chat (--chat)"
    data = read_file(path, _MAX_NAMING_SIZE, remedy=remedy)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: is no file of a tokenizer, because it is not UTF-8 text (byte "
            f"{error.start}); {remedy}"
        ) from error


def _with_beside(
    name: str | os.PathLike[str], path: Path | None
) -> tuple[Path, list[Path]]:
    """Return a tokenizer's file, and the files beside it that say how it is used."""
    if path is None:
        return _fetch(str(name), "tokenizer.json", FILES_BESIDE)
    paths = [path.parent / each for each in FILES_BESIDE]
    is_usual = path.name == "tokenizer.json"
    return path, [each for each in paths if is_usual and each.exists()]


def _fetch(name: str, file: str, others: Iterable[str]) -> tuple[Path, list[Path]]:
    """Return the paths, in a local cache, of a file and of other files that exist.

    Raises:
        OSError: The hub cannot be reached, and the cache does not hold the file.
        Exception: As the library raises it, for example because the name is unknown or
            private.
    """
    with _quiet():
        reason = _why_unreachable(name, file)
        try:
            path = _cached(name, file, is_offline=reason is not None)
        except Exception as error:
            if reason is None:
                raise
            raise OSError(
                f"the hub cannot be reached ({reason}), and its cache does not hold "
                f"{file}"
            ) from error
        return path, [*_existing(name, others, is_offline=reason is not None)]


def _existing(name: str, files: Iterable[str], *, is_offline: bool) -> Iterator[Path]:
    errors: Any = importlib.import_module("huggingface_hub.errors")
    for file in files:
        try:
            yield _cached(name, file, is_offline=is_offline)
        except errors.EntryNotFoundError as error:
            # Also raised if the connection is cut: then the file may well exist.
            if isinstance(error, errors.LocalEntryNotFoundError) and not is_offline:
                raise


def _cached(name: str, file: str, *, is_offline: bool) -> Path:
    hub: Any = importlib.import_module("huggingface_hub")
    return Path(hub.hf_hub_download(name, file, local_files_only=is_offline))


def _why_unreachable(name: str, file: str) -> str | None:
    """Return why the hub gave no answer; None if it answered, even with an error."""
    hub: Any = importlib.import_module("huggingface_hub")
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, file), timeout=_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - see below
        # The libraries that it used over time have no error in common.
        if getattr(error, "response", None) is not None:
            return None
        return reason_of(error)
    return None


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Hide the log lines about each attempt: the error says that all failed."""
    # Its import sets the level, so it comes first.
    importlib.import_module("huggingface_hub.file_download")
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _end_named_by(files: Iterable[Path]) -> str | None:
    """Return the `eos_token` of the first file that has one."""
    ends = (_token_text(_named_by(path).get("eos_token")) for path in files)
    return next((end for end in ends if end is not None), None)


def _named_by(path: Path) -> dict[str, Any]:
    """Return the content of a file that names special tokens."""
    remedy = "the tokenizer's end of text is in this file, so correct it, or remove it"
    data = read_file(path, _MAX_NAMING_SIZE, remedy=remedy)
    return parse_object(data, str(path), remedy, ValueError)


def _token_text(token: object) -> str | None:
    if isinstance(token, dict):  # A token with its options.
        token = cast("dict[str, object]", token).get("content")
    return token if isinstance(token, str) else None


def _file_of(name: str | os.PathLike[str]) -> Path | None:
    """Return the file of a tokenizer; None for a name on the hub."""
    path = expanded(name)
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
