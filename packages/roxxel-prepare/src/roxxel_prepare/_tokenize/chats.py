"""Render chats by the template of a tokenizer, and find what the assistant says.

A template is a program in Jinja, whose functions are those that `transformers` gives
it, with one exception: there is no `strftime_now`, because the bytes of a corpus must
not depend on the day. Templates that look for it first take their own date.

A template may mark what the assistant says with `{% generation %}`. Otherwise each
message of the assistant is what its chat has more than the chat before it, with the
prompt for an answer. This is known only if each of these texts begins the whole one.
If the last message is the assistant's, so is the end of the document: a template need
not have a token that ends a turn, and the model must learn to stop.

A content is a text, or a list of parts, and a template may take one of the two or both.
Nothing in a template says so. So each chat is also rendered with a text of ours in
place of each content: a template takes what it writes. What it leaves out would be lost
in silence, so that is an error. What it cuts out of a text, such as the reasoning in an
answer, is not found: a template may do so to earlier answers for good reason.

A chat is encoded as one text, in which the template has written the special tokens, as
`transformers` does for inference. So a token may span the border of what the assistant
says; it is learned if any of its characters is.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store import missing_extra
from roxxel_store.errors import reason_of

from roxxel_prepare._tokenize.values import (
    NOTHING,
    as_value,
    json_default,
    name_of,
    printed,
    test_of_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    _Spans = tuple[tuple[int, int], ...]
    _Encode = Callable[[str, _Spans], tuple[npt.NDArray[np.uint32], _Spans]]
    _Messages = list[dict[str, Any]]

_ASSISTANT = "assistant"
# Around what a template marks. Unicode reserves them for use inside a program.
_START, _STOP = "\ufdd0", "\ufdd1"
_OTHER = "pass the path of another one as chat (--chat-template)"
# What stands for a part of a message, by their numbers; no template changes letters.
_NEEDLE = "roxxel{0}part{1}end"
# What the assistant may say besides its content.
_ALSO_SAID = ("tool_calls", "function_call", "refusal", "audio")
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

        The last span ends one character after the text if the assistant speaks last:
        then the end of the document is learned too. A field of a message that is None
        is left out, because a table cannot tell it from one that is missing.

        Raises:
            ValueError: The messages cannot be rendered, or hold a text that is refused,
                or what the assistant says is unknown or nothing.
        """
        parsed, trial = self._as_taken(self._parsed(messages))
        last = len(parsed) - 1
        if _compiled(self.text).marks:
            text, spans = _without_marks(self._rendered(parsed))
            whole, marked = _without_marks(trial)
            needle = _NEEDLE.format(last, 0)
            is_last = any(needle in whole[start:stop] for start, stop in marked)
        else:
            text, spans = self._by_prefixes(parsed)
            is_last = parsed[last]["role"] == _ASSISTANT
        if not any(stop > start for start, stop in spans):
            raise ValueError(
                "messages hold nothing that the assistant says, so nothing would be "
                "learned; leave the chat out"
            )
        return text, (*spans, (len(text), len(text) + 1)) if is_last else spans

    def _parsed(self, messages: object) -> _Messages:
        what = "an empty list" if messages == [] else f"no list, but {messages!r:.30}"
        if not isinstance(messages, list) or not messages:
            raise ValueError(
                f"messages are {what}; pass a list of messages with role and content"
            )
        found: _Messages = []
        for number, message in enumerate(cast("list[object]", messages)):
            what = f"message {number}"
            table = _given_fields(what, message)
            if table is None:
                raise ValueError(
                    f"{what} is a {type(message).__name__}; a message is an object "
                    "with role and content"
                )
            if type(table.get("role")) is not str:
                raise ValueError(
                    f"{what} has no role, only {', '.join(table)}; a message is an "
                    "object with role and content"
                )
            if not {"content", "tool_calls"} & table.keys():
                raise ValueError(
                    f"{what} has no content, only {', '.join(table)}; a message is an "
                    "object with role and content"
                )
            for name in _ALSO_SAID:
                if name in table and name not in self.text:
                    raise ValueError(
                        f"{what} has {name}, which the chat template {self.name} does "
                        f"not write; leave the chat out, or {_OTHER}"
                    )
            problem = _problem_of_content(table.get("content", ""))
            if problem:
                raise ValueError(f"{what} {problem}")
            self._check_texts(number, table)
            found.append(table)
        return found

    def _as_taken(self, messages: _Messages) -> tuple[_Messages, str]:
        """Return the messages with contents as the template takes them.

        The contents as they are come first, then texts, then lists of parts. Also
        returns the rendering with a text of ours for each part.

        Raises:
            ValueError: The template refuses them all, or leaves one out.
        """
        problems: list[ValueError] = []
        for change in (None, _joined, _as_parts):
            taken = messages
            if change is not None:
                taken = [_with_content(each, change) for each in messages]
            try:
                return taken, self._trial(taken)
            except ValueError as error:
                problems.append(error)
        # A template may refuse every list of parts, so what it says of texts counts.
        raise problems[1]

    def _trial(self, messages: _Messages) -> str:
        """Return a chat with a text of ours for each part, as it is rendered.

        Raises:
            ValueError: The template refuses it, or leaves a part out.
        """
        needles: list[tuple[int, str, str]] = []
        trial = self._rendered(
            [_with_needles(at, each, needles) for at, each in enumerate(messages)]
        )
        for at, what, needle in needles:
            if needle not in trial:
                raise ValueError(
                    f"message {at} of the role {messages[at]['role']!r} has {what} "
                    f"that the chat template {self.name} leaves out; leave the chat "
                    f"out, or {_OTHER}"
                )
        return trial

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
                tools=NOTHING,
                documents=NOTHING,
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

    def to_json(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # As that of transformers; that of Jinja escapes characters for web pages.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
            default=json_default,
        )

    environment: Any = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, extensions.loopcontrols],
        finalize=printed,
    )
    environment.filters["tojson"] = to_json
    environment.filters["string"] = _printed_text
    environment.globals["raise_exception"] = refuse
    for name, test in environment.tests.items():
        if not hasattr(test, "jinja_pass_arg"):  # Those are not about values.
            environment.tests[name] = test_of_values(test)
    tree = environment.parse(text)
    for joined in [*tree.find_all(nodes.Concat)]:  # `~` makes texts of its operands.
        joined.nodes = [
            nodes.Filter(each, "string", [], [], None, None, lineno=joined.lineno)
            for each in joined.nodes
        ]
    meta: Any = importlib.import_module("jinja2.meta")
    names = meta.find_undeclared_variables(tree)
    return _Compiled(environment.from_string(tree), set(names), has_marks)


def _printed_text(value: object) -> str:
    return str(printed(value))


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


def _given_fields(what: str, message: object) -> dict[str, Any] | None:
    """Return the fields of a message that are not null or empty lists.

    Nulls are left out of the parts of its content too. None if it is no message.
    """
    if not isinstance(message, Mapping):
        return None
    fields = cast("Mapping[str, object]", message)
    given = {
        name: value
        for name, value in fields.items()
        if value is not None and value != []
    }
    parts = given.get("content")
    if isinstance(parts, (list, tuple)):
        given["content"] = [_given(part) for part in cast("list[object]", parts)]
    try:
        return as_value(given)
    except ValueError as error:
        raise ValueError(
            f"{what} holds {error}; pass texts, numbers, lists and objects"
        ) from None


def _given(part: object) -> object:
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, Any]", part)
    return {name: value for name, value in fields.items() if value is not None}


def _problem_of_content(content: object) -> str:
    """Return why a content has no texts alone; empty if it has."""
    if isinstance(content, str):
        return ""
    if not isinstance(content, list):
        return (
            f"has as content {name_of(content)}; a content is a text, or a list of "
            "parts of type text"
        )
    problems = map(_problem_of, cast("list[object]", content))
    found = ((number, problem) for number, problem in enumerate(problems) if problem)
    for number, problem in found:
        return (
            f"has a content whose part {number} {problem}; a part is an object with "
            "type text and a text, so leave the chat out"
        )
    return ""


def _problem_of(part: object) -> str:
    """Return why a part of a content is no text; empty if it is one."""
    if not isinstance(part, dict):
        return f"is {name_of(part)}"
    table = cast("dict[str, object]", part)
    kind = table.get("type")
    if kind == "text":
        return "" if isinstance(table.get("text"), str) else "has no text"
    return f"is of type {kind!r}" if isinstance(kind, str) else "has no type"


def _with_content(
    message: dict[str, Any], change: Callable[[Any], Any]
) -> dict[str, Any]:
    if "content" not in message:
        return message
    changed = copy(message)
    content = change(message["content"])
    changed["content"] = content if isinstance(content, str) else as_value(content)
    return changed


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    # As the templates do that print one part after the other.
    return "".join(part["text"] for part in content)


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


def _with_needles(
    number: int, message: dict[str, Any], needles: list[tuple[int, str, str]]
) -> dict[str, Any]:
    """Return a message with texts of ours for what it says; blank texts stay.

    Notes for each text the message, what it stands for, and the text.
    """
    num_parts = 0

    def needle(text: str, what: str) -> str:
        nonlocal num_parts
        if not text.strip():
            return text
        found = _NEEDLE.format(number, num_parts)
        needles.append((number, what, found))
        num_parts += 1
        return found

    def content_of(content: Any) -> Any:
        if isinstance(content, str):
            return needle(content, "a content")
        return [
            dict(part) | {"text": needle(part["text"], "a part of a content")}
            for part in content
        ]

    def call_of(call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        table = cast("dict[str, Any]", call)
        if isinstance(table.get("function"), dict):
            return table | {"function": call_of(table["function"])}
        if isinstance(table.get("name"), str):
            return table | {"name": needle(table["name"], "a call")}
        return table

    changed = _with_content(message, content_of)
    calls = changed.get("tool_calls")
    if isinstance(calls, list):
        changed = copy(changed)
        changed["tool_calls"] = as_value([*map(call_of, cast("list[Any]", calls))])
    return changed


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
