"""Render chats by the template of a tokenizer, and find what the assistant says.

A template is a program in Jinja, whose functions are those that `transformers` gives
it, with one exception: there is no `strftime_now`, because the bytes of a corpus must
not depend on the day. Templates that look for it first take their own date.

A template may mark what the assistant says with `{% generation %}`. Otherwise each
message of the assistant is what its chat has more than the chat before it, with the
prompt for an answer. This is known only if each of these texts begins the whole one.

A chat is encoded as one text, in which the template has written the special tokens, as
`transformers` does for inference. So a token may span the border of what the assistant
says; it is learned if any of its characters is.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store import missing_extra
from roxxel_store.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    _Spans = tuple[tuple[int, int], ...]
    _Encode = Callable[[str, _Spans], tuple[npt.NDArray[np.uint32], _Spans]]

_ASSISTANT = "assistant"
# Around what a template marks. Unicode reserves them for use inside a program.
_START, _STOP = "\ufdd0", "\ufdd1"
_OTHER = "pass the path of another one as chat (--chat-template)"
_TOKENS = {f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls")}


@dataclass(frozen=True)
class ChatTemplate:
    """Renders chats; can be pickled.

    Attributes:
        name: Where the template is, for messages.
        text: The template.
        tokens: The texts of special tokens by the names that templates use.
        refused: Texts that no message may hold: those of special tokens, which a
            message would else put into the corpus.
    """

    name: str
    text: str
    tokens: tuple[tuple[str, str], ...]
    refused: tuple[str, ...]

    @staticmethod
    def checked(
        name: str, template: object, tokens: Mapping[str, str], refused: tuple[str, ...]
    ) -> ChatTemplate:
        """Return a template after it is compiled.

        Args:
            name: Where the template is.
            template: The template, or a list of named ones, of which `default` counts.
            tokens: The texts of special tokens.
            refused: Texts that no message may hold.

        Raises:
            ModuleNotFoundError: Jinja is not installed.
            ValueError: It is no template, or uses a token that has no text.
        """
        text = template
        if isinstance(template, list):
            named = cast("list[dict[str, object]]", template)
            texts = {each.get("name"): each.get("template") for each in named}
            text = texts.get("default")
        if type(text) is not str:
            raise ValueError(f"{name}: its chat template is no text; {_OTHER}")
        try:
            compiled = _compiled(text)
        except ModuleNotFoundError as error:
            raise missing_extra("chat", "jinja2", "roxxel-prepare", "chat") from error
        except Exception as error:  # of Jinja
            why = reason_of(error)
            raise ValueError(
                f"{name}: its chat template cannot be read ({why}); {_OTHER}"
            ) from error
        missing = sorted((compiled.names & _TOKENS) - tokens.keys())
        if missing:
            raise ValueError(
                f"{name}: its chat template writes {missing[0]}, which no file beside "
                "the tokenizer names; add it to a tokenizer_config.json there, or "
                f"{_OTHER}"
            )
        used = {each: tokens[each] for each in sorted(compiled.names & tokens.keys())}
        return ChatTemplate(name, text, tuple(used.items()), refused)

    @property
    def identity(self) -> str:
        """A digest of the template and of the tokens that it writes."""
        data = json.dumps([self.text, self.tokens]).encode()
        return blake2b(data, digest_size=16).hexdigest()

    def render(self, messages: object) -> tuple[str, _Spans]:
        """Return the text of a chat, and the spans of what the assistant says.

        A field of a message that is None is left out, because a table cannot tell it
        from one that is missing.

        Raises:
            ValueError: The messages cannot be rendered, or hold a text that is refused,
                or what the assistant says is unknown or nothing.
        """
        parsed = self._parsed(messages)
        if _compiled(self.text).marks:
            text, spans = _without_marks(self._rendered(parsed))
        else:
            text, spans = self._by_prefixes(parsed)
        if not any(stop > start for start, stop in spans):
            raise ValueError(
                "messages hold nothing that the assistant says, so nothing would be "
                "learned; leave the chat out"
            )
        return text, spans

    def _parsed(self, messages: object) -> list[dict[str, Any]]:
        what = "an empty list" if messages == [] else f"no list, but {messages!r:.30}"
        if not isinstance(messages, list) or not messages:
            raise ValueError(
                f"messages are {what}; pass a list of messages with role and content"
            )
        found: list[dict[str, Any]] = []
        for number, message in enumerate(cast("list[object]", messages)):
            table = _given_fields(message)
            if table is None:
                raise ValueError(
                    f"message {number} is a {type(message).__name__}; a message is an "
                    "object with role and content"
                )
            if type(table.get("role")) is not str:
                raise ValueError(
                    f"message {number} has no role, only {', '.join(table)}; a message "
                    "is an object with role and content"
                )
            if not {"content", "tool_calls"} & table.keys():
                raise ValueError(
                    f"message {number} has no content, only {', '.join(table)}; a "
                    "message is an object with role and content"
                )
            if "tool_calls" in table and "tool_calls" not in self.text:
                raise ValueError(
                    f"message {number} has tool_calls, which the chat template "
                    f"{self.name} does not write; leave the chat out, or {_OTHER}"
                )
            self._check_texts(number, table)
            found.append(table)
        return found

    def _check_texts(self, number: int, message: object) -> None:
        for text in _texts_in(message):
            if _START in text or _STOP in text:
                raise ValueError(
                    f"message {number} holds a character that Unicode reserves "
                    "(U+FDD0 or U+FDD1); correct it"
                )
            for refused in self.refused:
                if refused in text:
                    raise ValueError(
                        f"message {number} holds {refused!r}, the text of a special "
                        "token, which it would become; correct it, or pass "
                        "special_tokens=True (--special-tokens) if that is right"
                    )

    def _by_prefixes(self, messages: list[dict[str, Any]]) -> tuple[str, _Spans]:
        text = self._rendered(messages)
        spans: list[tuple[int, int]] = []
        for number, message in enumerate(messages):
            if message["role"] != _ASSISTANT:
                continue
            before = self._rendered(messages[:number], is_asked=True)
            after = self._rendered(messages[: number + 1])
            if not (text.startswith(after) and after.startswith(before)):
                raise ValueError(
                    f"message {number} is rendered otherwise when others follow or "
                    f"when it is asked for, so its tokens are unknown in {self.name}; "
                    "mark them there with {% generation %} and {% endgeneration %}, "
                    f"or {_OTHER}"
                )
            spans.append((len(before), len(after)))
        return text, tuple(spans)

    def _rendered(
        self, messages: list[dict[str, Any]], *, is_asked: bool = False
    ) -> str:
        try:
            return _compiled(self.text).template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=is_asked,
                **dict(self.tokens),
            )
        except Exception as error:  # a template may raise anything
            problem, remedy = reason_of(error), f"correct them, or {_OTHER}"
            if "strftime_now" in problem:
                problem = "it writes today's date, and a corpus must not depend on it"
                remedy = (
                    "write a date into a copy of the template, and pass its path as "
                    "chat (--chat-template)"
                )
            raise ValueError(
                f"messages are refused by the chat template {self.name} ({problem}); "
                f"{remedy}"
            ) from error


def chat_encoder(tokenizer: Any) -> _Encode:
    """Return a function that encodes the texts of chats.

    It also returns the spans of the tokens that are learned, from those of the
    characters.

    Args:
        tokenizer: A `tokenizers.Tokenizer`, which does not change.
    """
    library: Any = importlib.import_module("tokenizers")
    encoder: Any = library.Tokenizer.from_str(tokenizer.to_str())
    encoder.no_truncation()
    encoder.no_padding()
    # The template writes what a post-processor would add. That of GPT-2 also leaves
    # spaces out of the characters of a token.
    encoder.post_processor = None

    def encode(text: str, learned: _Spans) -> tuple[npt.NDArray[np.uint32], _Spans]:
        found = encoder.encode(text, add_special_tokens=False)
        ids = np.array(found.ids, np.uint32)
        starts, stops = np.array(found.offsets, np.int64).reshape(-1, 2).T
        is_learned = np.zeros(ids.size, np.bool)
        for start, stop in learned:
            is_learned |= (starts < stop) & (stops > start)
        borders = np.flatnonzero(np.diff(is_learned, prepend=False, append=False))
        pairs: list[list[int]] = borders.reshape(-1, 2).tolist()
        return ids, tuple((first, last) for first, last in pairs)

    return encode


@dataclass(frozen=True)
class _Compiled:
    """A template, the names it does not define, and whether it marks the assistant."""

    template: Any
    names: set[str]
    marks: bool


@lru_cache(maxsize=4)
def _compiled(text: str) -> _Compiled:
    """Compile a template as `transformers` does."""
    jinja: Any = importlib.import_module("jinja2")
    sandbox: Any = importlib.import_module("jinja2.sandbox")
    extensions: Any = importlib.import_module("jinja2.ext")
    nodes: Any = importlib.import_module("jinja2.nodes")
    has_marks = False

    class Generation(extensions.Extension):
        """The block `{% generation %}`, whose text is put between marks."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            nonlocal has_marks
            has_marks = True
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_marked")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{_START}{caller()}{_STOP}"

    def refuse(message: str) -> None:
        raise jinja.TemplateError(message)

    def to_json(value: object, indent: int | None = None, **options: Any) -> str:
        # That of Jinja escapes characters for web pages.
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    environment: Any = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, extensions.loopcontrols],
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    meta: Any = importlib.import_module("jinja2.meta")
    names = meta.find_undeclared_variables(environment.parse(text))
    return _Compiled(environment.from_string(text), set(names), has_marks)


def _without_marks(text: str) -> tuple[str, _Spans]:
    """Return a text without marks, and the spans between them."""
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    size = 0
    for part in text.split(_START):
        inside, mark, outside = part.partition(_STOP)
        if mark:
            spans.append((size, size + len(inside)))
        parts += [inside, outside]
        size += len(inside) + len(outside)
    return "".join(parts), tuple(spans)


def _given_fields(message: object) -> dict[str, Any] | None:
    """Return the fields of a message that are not None; None if it is no message."""
    if not isinstance(message, Mapping):
        return None
    fields = cast("Mapping[str, Any]", message).items()
    return {name: value for name, value in fields if value is not None}


def _texts_in(value: object) -> Iterator[str]:
    """Yield every text in a message, its keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in cast("dict[str, object]", value).items():
            yield name
            yield from _texts_in(each)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _texts_in(each)
