"""Render chats by the template of a tokenizer, and find what the assistant says.

A template is a program in Jinja, whose functions are those that `transformers` gives
it, with one exception: there is no `strftime_now`, because the bytes of a corpus must
not depend on the day. Templates that look for it first take their own date.

A template may mark what the assistant says with `{% generation %}`. Otherwise the
template renders the chat twice for each message of the assistant: up to the message
(with the prompt for an answer), and with it. The message is the difference. This works
only if each of these texts is the beginning of the whole chat. If the last message is
the assistant's, the end of the document counts as the assistant's too: the template may
have no token that ends a turn, and the model must learn to stop.

A content is a text, or a list of parts, and a template may accept one of the two or
both. Nothing in a template says which. So each chat is also rendered with marker texts
in place of its texts: a form is accepted if its markers appear. It is an error if a
template leaves a text out, which would be lost in silence. It is also an error if the
template changes a text: many drop the reasoning in an answer. A template may strip the
ends of a text, because models have seen such chats. Only in an answer of weight 0,
which the loss leaves out, may reasoning be missing: a model in use does not see the
reasoning of earlier answers.

A chat is encoded as one text, in which the template has written the special tokens, as
`transformers` does for inference. So a token may span the border of what the assistant
says. The loss counts the token if it counts any of its characters.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store import missing_extra
from roxxel_store.errors import reason_of

from roxxel_prepare._tokenize.values import as_value, name_of, printed, problem_of_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    _Ranges = tuple[tuple[int, int], ...]
    _Encode = Callable[[str, _Ranges], tuple[npt.NDArray[np.uint32], _Ranges]]
    _Messages = list[dict[str, Any]]

_ASSISTANT, _CONTENT = "assistant", "content"
# Around what a template marks. Unicode reserves them for use inside a program.
_START, _STOP = "\ufdd0", "\ufdd1"
_OTHER = "pass the path of another one as chat (--chat)"
_CORRECT = f"correct them, or {_OTHER}"
# What stands for a part of a message, by their numbers; no template changes letters.
_NEEDLE = "roxxel{0}part{1}end"
_NEEDLES = re.compile(_NEEDLE.format(r"(\d+)", r"\d+"))
# Fields of messages, parts and calls that say nothing, so a template may leave them
# out. The documentation repeats this list.
_SAYS_NOTHING = frozenset(
    [
        *("id", "message_id", "parent_id", "tool_call_id", "uuid", "index", "type"),
        *("created_at", "date", "timestamp", "lang", "language", "model", "source"),
        *("metadata", "tags", "cache_control", "weight"),
    ]
)
# The name of a tool stands in its call.
_ANSWERS = ("tool", "function")
_TOKENS = {f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls")}


@dataclass(frozen=True)
class _Said:
    """A text in a field of a message, and the marker text that stands for it."""

    message: int
    field: str
    text: str
    needle: str


@dataclass(frozen=True)
class ChatTemplate:
    """Renders chats; can be pickled.

    Attributes:
        name: Where the template is, for messages.
        text: The template.
        tokens: The texts of special tokens by the names that templates use.
        refused: Texts that no message may contain: those of special tokens, which a
            message could otherwise put into the corpus.
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
            refused: Texts that no message may contain.

        Raises:
            ModuleNotFoundError: Jinja is not installed.
            ValueError: This is not a template, or it uses a token that has no text.
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

    def render(self, messages: object) -> tuple[str, _Ranges]:
        """Return the text of a chat, and the spans of what the assistant says.

        If the assistant speaks last, the last span ends one character after the text:
        the loss then counts the end of the document too. What is None in an object is
        left out at every depth, but for a content beside calls, because a table cannot
        tell it from a missing field.

        Raises:
            ValueError: The messages cannot be rendered, contain a refused text, or
                nothing in them is known to be the assistant's.
        """
        taken, said, trial = self._as_taken(self._parsed(messages))
        unlearned = {at for at, each in enumerate(taken) if each.get("weight") == 0}
        find = self._by_marks if _compiled(self.text).marks else self._by_prefixes
        text, spans, learned = find(taken, unlearned, trial)
        self._check_whole(taken, text, said, trial)
        if not any(stop > start for start, stop in spans):
            raise ValueError(
                "messages hold nothing that the assistant says, so nothing would be "
                "learned; leave the chat out"
            )
        is_last = len(taken) - 1 in learned
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
            content = table.get(_CONTENT)
            content = "" if content is None else content
            problem = _problem_of_content(content)
            problem = problem or _problem_of_weight(table.get("weight", 1))
            if problem:
                raise ValueError(f"{what} {problem}")
            # A special token must not come from two parts either.
            self._check_texts(number, [table, _joined(content)])
            found.append(table)
        return found

    def _as_taken(self, messages: _Messages) -> tuple[_Messages, list[_Said], str]:
        """Return the messages with contents in the form that the template accepts.

        It tries the contents as they are, then as texts, then as lists of parts; a
        content that is null beside calls is missing in the last two forms. Also
        return the texts of the messages, and the rendering with marker texts for them.

        Raises:
            ValueError: The template refuses all forms, or leaves something out.
        """
        problems: list[ValueError] = []
        for change in (None, _joined, _as_parts):
            taken = messages
            if change is not None:
                taken = [_with_content(each, change) for each in messages]
            try:
                said, trial = self._trial(taken)
            except ValueError as error:
                problems.append(error)
                continue
            self._check_fields(taken, said, trial)
            return taken, said, trial
        # A template may refuse every list of parts, so what it says of texts counts.
        raise problems[1]

    def _trial(self, messages: _Messages) -> tuple[list[_Said], str]:
        """Return the texts of messages, and their rendering with marker texts for them.

        Raises:
            ValueError: The template refuses them, or leaves a content out.
        """
        said: list[_Said] = []
        marked = [_with_needles(at, each, said) for at, each in enumerate(messages)]
        trial = self._rendered(marked)
        others = [*_compiled(self.text).literals, *_texts_in(marked)]
        if problem := problem_of_words(trial, others):
            raise self._refused(problem, _CORRECT)
        for each in said:
            if each.field == _CONTENT and each.needle not in trial:
                raise self._left_out(messages, each.message, _CONTENT)
        return said, trial

    def _check_fields(self, messages: _Messages, said: list[_Said], trial: str) -> None:
        """Check that the template writes the texts that are not contents."""
        written: dict[tuple[int, str], bool] = {}
        for each in said:
            place = each.message, each.field
            written[place] = written.get(place, True) and each.needle in trial
        for at, message in enumerate(messages):
            for field, value in message.items():
                # What has no text, such as true, is taken by a template that names it.
                is_written = written.get((at, field), field in self.text)
                is_needed = not _may_be_cut(message) or field == "tool_calls"
                if is_needed and _says(message, field, value) and not is_written:
                    raise self._left_out(messages, at, field)

    def _left_out(self, messages: _Messages, at: int, field: str) -> ValueError:
        return ValueError(
            f"message {at} of the role {messages[at]['role']!r} has {field!r}, which "
            f"the chat template {self.name} leaves out; leave it or the chat out, or "
            f"{_OTHER}"
        )

    def _check_whole(
        self, messages: _Messages, text: str, said: list[_Said], trial: str
    ) -> None:
        """Check that the texts stand in the chat, in the order of their markers."""
        at = 0
        for each in sorted(said, key=lambda each: trial.find(each.needle)):
            message = messages[each.message]
            if _may_be_cut(message):
                continue
            own = each.text.strip()
            # Arguments may be written as JSON.
            in_json = [
                json.dumps(own, ensure_ascii=is_ascii)[1:-1]
                for is_ascii in (True, False)
            ]
            found = [
                (start, start + len(form))
                for form in (own, *in_json)
                if (start := text.find(form, at)) >= 0
            ]
            if not found:
                is_answer = message["role"] == _ASSISTANT
                raise ValueError(
                    f"message {each.message} of the role {message['role']!r} has "
                    f"{each.field!r}, which the chat template {self.name} cuts or "
                    f"changes ({own!r:.40} does not stand in the chat as it is); leave "
                    f"out what it cuts, {'give the message weight 0, ' * is_answer}or "
                    f"{_OTHER}"
                )
            at = min(found)[1]

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

    def _by_marks(
        self, messages: _Messages, unlearned: set[int], trial: str
    ) -> tuple[str, _Ranges, set[int]]:
        """Return the text of a chat, its learned spans, and the messages in these."""
        text, spans = _without_marks(self._rendered(messages))
        whole, marked = _without_marks(trial)
        inside = [
            {int(number) for number in _NEEDLES.findall(whole[start:stop])}
            for start, stop in marked
        ]
        answers = [at for at, each in enumerate(messages) if each["role"] == _ASSISTANT]
        if len(inside) == len(answers):  # A blank answer has no marker text.
            inside = [found or {at} for found, at in zip(inside, answers, strict=True)]
        if unlearned:
            if len(inside) != len(spans) or not all(
                each and (each <= unlearned or each.isdisjoint(unlearned))
                for each in inside
            ):
                raise ValueError(
                    "messages have weight 0, but what is said by them alone is unknown "
                    f"in {self.name}; put one {{% generation %}} there around each "
                    f"message, or {_OTHER}"
                )
            pairs = zip(spans, inside, strict=True)
            spans = tuple(span for span, each in pairs if each.isdisjoint(unlearned))
        return text, spans, set[int]().union(*inside) - unlearned

    def _by_prefixes(
        self, messages: _Messages, unlearned: set[int], _: str
    ) -> tuple[str, _Ranges, set[int]]:
        """Return the text of a chat, its learned spans, and the messages in these."""
        text = self._rendered(messages)
        spans: list[tuple[int, int]] = []
        learned = {at for at, each in enumerate(messages) if each["role"] == _ASSISTANT}
        learned -= unlearned
        for number in sorted(learned):
            # A template may refuse a chat that ends here: then nothing begins the text.
            before = after = f"{text}?"
            with suppress(ValueError):
                before = self._rendered(messages[:number], is_asked=True)
                after = self._rendered(messages[: number + 1])
            if not (text.startswith(after) and after.startswith(before)):
                raise ValueError(
                    f"message {number} is rendered otherwise when others follow or "
                    f"when it is asked for, so its tokens are unknown in {self.name}; "
                    "give it weight 0 if it need not be learned, mark what is said "
                    "there with {% generation %} and {% endgeneration %}, or "
                    f"{_OTHER}"
                )
            spans.append((len(before), len(after)))
        return text, tuple(spans), learned

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
            problem, remedy = reason_of(error), _CORRECT
            if "strftime_now" in problem:
                problem = "it writes today's date, and a corpus must not depend on it"
                remedy = (
                    "write a date into a copy of the template, and pass its path as "
                    "chat (--chat)"
                )
            raise self._refused(problem, remedy) from error

    def _refused(self, problem: str, remedy: str) -> ValueError:
        return ValueError(
            f"messages are refused by the chat template {self.name} ({problem}); "
            f"{remedy}"
        )


def chat_encoder(tokenizer: Any) -> _Encode:
    """Return a function that encodes the texts of chats.

    The function turns the learned spans of characters into learned spans of tokens.

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

    def encode(text: str, learned: _Ranges) -> tuple[npt.NDArray[np.uint32], _Ranges]:
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
    """A compiled template, and what it says of itself.

    Attributes:
        template: The template.
        names: The names that it does not define.
        literals: The texts in it.
        marks: Whether it marks what the assistant says.
    """

    template: Any
    names: set[str]
    literals: list[str]
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
        """The block `{% generation %}`; it puts its text between marks."""

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
        )

    environment: Any = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, extensions.loopcontrols],
        finalize=printed,
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    tree = environment.parse(text)
    meta: Any = importlib.import_module("jinja2.meta")
    names = meta.find_undeclared_variables(tree)
    literals = [each.data for each in tree.find_all(nodes.TemplateData)]
    constants = [each.value for each in tree.find_all(nodes.Const)]
    literals += [each for each in constants if isinstance(each, str)]
    return _Compiled(environment.from_string(tree), set(names), literals, has_marks)


def _without_marks(text: str) -> tuple[str, _Ranges]:
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
    """Return the fields of a message, without nulls and without empty lists.

    None if it is no message.
    """
    if not isinstance(message, Mapping):
        return None
    fields = cast("Mapping[str, object]", message)
    given = cast("dict[str, Any]", _given(fields))
    given = {name: value for name, value in given.items() if value != []}
    if "tool_calls" in given and _CONTENT in fields:  # Templates ask if it is none.
        given.setdefault(_CONTENT, None)
    try:
        return as_value(given)
    except ValueError as error:
        raise ValueError(
            f"{what} holds {error}; pass texts, numbers, lists and objects"
        ) from None


def _given(value: object) -> object:
    """Return a value without the nulls in its objects.

    A table has one type for all rows, so an object in it has every field that the
    object of any other row has, as a null.
    """
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value).items()
        return {name: _given(each) for name, each in fields if each is not None}
    if isinstance(value, (list, tuple)):
        return [*map(_given, cast("list[object]", value))]
    return value


def _problem_of_content(content: object) -> str:
    """Describe what a content holds besides texts; empty if it holds only texts."""
    if isinstance(content, str):
        return ""
    if not isinstance(content, list):
        return (
            f"has as content {name_of(content)}; a content is a text, or a list of "
            "parts of type text"
        )
    for number, part in enumerate(cast("list[object]", content)):
        problem = _problem_of(part)
        if problem:
            return (
                f"has a content whose part {number} {problem}; a part is an object "
                "with type text and a text, so leave the chat out"
            )
    return ""


def _problem_of_weight(weight: object) -> str:
    if type(weight) in (int, float) and weight in (0, 1):
        return ""
    return (
        f"has as weight {name_of(weight)}; a weight is 0 or 1, so correct it or leave "
        "the chat out"
    )


def _problem_of(part: object) -> str:
    """Describe why a part of a content is no text; empty if it is a text."""
    if not isinstance(part, dict):
        return f"is {name_of(part)}"
    table = cast("dict[str, object]", part)
    kind = table.get("type")
    if kind == "text":
        more = table.keys() - _SAYS_NOTHING - {"text"}
        if more:
            return f"has {min(more)!r} besides its text"
        return "" if isinstance(table.get("text"), str) else "has no text"
    return f"is of type {kind!r}" if isinstance(kind, str) else "has no type"


def _with_content(
    message: dict[str, Any], change: Callable[[Any], Any]
) -> dict[str, Any]:
    changed = copy(message)
    content = changed.pop(_CONTENT, None)
    if content is not None:
        content = change(content)
        changed[_CONTENT] = content if isinstance(content, str) else as_value(content)
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


def _says(message: dict[str, Any], field: str, value: object) -> bool:
    is_name = field == "name" and message["role"] in _ANSWERS
    is_blank = value == {} or (isinstance(value, str) and not value.strip())
    return not (field == "role" or field in _SAYS_NOTHING or is_name or is_blank)


def _may_be_cut(message: dict[str, Any]) -> bool:
    """Return whether a template may drop the reasoning, as in an unlearned answer."""
    return message["role"] == _ASSISTANT and message.get("weight") == 0


def _with_needles(
    number: int, message: dict[str, Any], said: list[_Said]
) -> dict[str, Any]:
    """Return a message with marker texts in place of its texts; blank texts stay.

    Adds its texts to `said`. A template writes the values of a call's arguments as
    JSON, so numbers there are texts too.
    """
    first = len(said)

    def changed(field: str, value: Any, *, is_argument: bool = False) -> Any:
        if isinstance(value, list):
            return [
                changed(field, each, is_argument=is_argument)
                for each in cast("list[Any]", value)
            ]
        if isinstance(value, dict):
            return {
                name: each
                if name in _SAYS_NOTHING and not is_argument
                else changed(
                    field, each, is_argument=is_argument or name == "arguments"
                )
                for name, each in cast("dict[str, Any]", value).items()
            }
        if is_argument and not isinstance(value, str) and value is not None:
            value = json.dumps(value)
        if not isinstance(value, str) or not value.strip():
            return value
        needle = _NEEDLE.format(number, len(said) - first)
        said.append(_Said(number, field, value, needle))
        return needle

    return {
        field: as_value(changed(field, value))
        if _says(message, field, value)
        else value
        for field, value in message.items()
    }


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
