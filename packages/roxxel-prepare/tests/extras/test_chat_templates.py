"""What the templates of well-known models make of chats, and what is learned of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_prepare.tokenizers import load_chat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Render = Callable[[str, Any], tuple[str, list[str]]]


CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
LLAMA_3 = """{% set loop_messages = messages %}{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' +
 message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = '<|begin_of_text|>' + content %}{% endif %}
{{ content }}{% endfor %}{% if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
MISTRAL = """{% set ns = namespace(system='') %}<s>
{%- for message in messages %}
{%- if message['role'] == 'system' %}{% set ns.system = message['content'] + '\n\n' %}
{%- elif message['role'] == 'user' %}
{{- '[INST] ' + (ns.system if loop.index0 < 2 else '') + message['content'] +
 '[/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + '</s>' }}
{%- else %}{{ raise_exception('Only user, system and assistant roles!') }}
{%- endif %}{% endfor %}"""
GEMMA = """{{ '<bos>' }}{% for message in messages %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}
{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
GEMMA_3 = """{{ '<bos>' }}{% for message in messages %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' }}
{%- if message['content'] is string %}{{ message['content'] | trim }}
{%- elif message['content'] is iterable %}{% for item in message['content'] %}
{% if item['type'] == 'image' %}{{ '<image>' }}
{%- elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}
{% else %}{{ raise_exception('Invalid content type') }}{% endif %}
{{ '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
PHI = """{% for message in messages %}{% if message['role'] == 'system' %}
{{'<|system|>\n' + message['content'] + '<|end|>\n'}}
{%- elif message['role'] == 'user' %}
{{'<|user|>\n' + message['content'] + '<|end|>\n'}}
{%- elif message['role'] == 'assistant' %}
{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '</s>' }}
{% elif message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '</s>' }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + '</s>' }}{% endif %}

{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}
{% endfor %}"""
DEEPSEEK = """{% if not add_generation_prompt is defined %}
{% set add_generation_prompt = false %}{% endif %}
{% set ns = namespace(system='') %}{% for message in messages %}
{% if message['role'] == 'system' %}{% set ns.system = message['content'] %}{% endif %}
{% endfor %}{{ '<bos>' }}{{ ns.system }}{% for message in messages %}
{% if message['role'] == 'user' %}{{ '<User>' + message['content'] }}{% endif %}
{% if message['role'] == 'assistant' and message['content'] is not none %}
{% set content = message['content'] %}
{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}
{% endif %}{{ '<Assistant>' + content + '<end>' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<Assistant>' }}{% endif %}"""
VISION = """{% for message in messages %}{% if loop.first %}<|start|>{% endif %}
{{ message['role'] | capitalize }}
{%- if message['content'][0]['type'] == 'image' %}{{ ':' }}
{%- else %}{{ ': ' }}{% endif %}
{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}
{%- elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
MARKED = """{% for message in messages %}{{ '<|' ~ message.role ~ '|>' }}
{% if message.role == 'assistant' %}
{% generation %}{{ message.content + '<eos>' }}{% endgeneration %}{{ '\n' }}
{% else %}{{ message.content + '\n' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
PLAIN = """{% for message in messages %}
[{{ message['role'] }}] {{ message['content'] }}
{% endfor %}"""
QWEN_3 = """{% set ns = namespace(asked=messages | length) %}
{% for message in messages %}{% if message.role == 'user' %}
{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}
{% for message in messages %}{% if message.role != 'assistant' %}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- else %}{% set reasoning = '' %}{% set content = message.content %}
{% if message.reasoning_content is string %}
{% set reasoning = message.reasoning_content %}{% elif '</think>' in content %}
{% set reasoning = content.split('</think>')[0].split('<think>')[-1] %}
{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}
{{ '<|im_start|>' + message.role + '\n' }}{% if loop.index0 > ns.asked %}
{{ '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' }}{% endif %}
{{ content.lstrip('\n') + '<|im_end|>\n' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
QWEN_TOOLS = """{% for message in messages %}{% if message.tool_calls %}
{{ '<|im_start|>' + message.role }}{% if message.content %}
{{ '\n' + message.content }}{% endif %}{% for tool_call in message.tool_calls %}
{% if tool_call.function is defined %}
{% set tool_call = tool_call.function %}{% endif %}
{{ '\n<tool_call>\n{"name": "' }}{{ tool_call.name }}{{ '", "arguments": ' }}
{{- tool_call.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}
{{ '<|im_end|>\n' }}{% elif message.role == 'tool' %}
{{ '<|im_start|>user\n<tool_response>\n' + message.content }}
{{- '\n</tool_response><|im_end|>\n' }}{% else %}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

FAMILIES: dict[str, tuple[str, str]] = {
    "chatml": (CHATML, "{}<|im_end|>\n"),
    "llama 3": (LLAMA_3, "{}<|eot_id|>"),
    "mistral": (MISTRAL, " {}</s>"),
    "gemma": (GEMMA, "{}<end_of_turn>\n"),
    "gemma 3": (GEMMA_3, "{}<end_of_turn>\n"),
    "phi": (PHI, "{}<|end|>\n"),
    "zephyr": (ZEPHYR, "{}</s>\n"),
    "deepseek": (DEEPSEEK, "{}<end>"),
    "vision": (VISION, " {}<end>\n"),
    "marked": (MARKED, "{}<eos>"),
    "plain": (PLAIN, "[assistant] {}\n"),
    "qwen with tools": (QWEN_TOOLS, "{}<|im_end|>\n"),
}


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Render:
    """Return what renders a chat: its text, and the parts that are learned.

    An end of the document that is learned is the part `[end]`.
    """
    folder = tmp_path_factory.mktemp("templates")

    def rendered(template: str, chat: Any) -> tuple[str, list[str]]:
        path: Path = folder / "chat.jinja"
        path.write_text(template, encoding="utf-8")
        text, spans = load_chat(None, path, ()).render(chat)
        learned = [
            f"{text}[end]"[slice(*span)] for span in spans if span[0] < len(text)
        ]
        ends = any(stop > len(text) for _, stop in spans)
        return text, learned + ["[end]"] * ends

    return rendered


def said(role: str, content: Any, **others: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **others}


def as_parts(chat: list[Any], cut: int) -> list[Any]:
    """Return a chat whose contents are two parts each."""
    return [
        message
        | {
            "content": [
                {"type": "text", "text": text}
                for text in (message["content"][:cut], message["content"][cut:])
            ]
        }
        for message in chat
    ]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25)
@given(data=st.data())
def test_a_template_learns_exactly_what_the_assistant_says(
    render: Render, family: str, data: st.DataObject
) -> None:
    template, ending = FAMILIES[family]
    # No template trims a word, and no word is one that a template writes.
    words = st.text("xyz\u00e9\u6f22{}'\"", min_size=2, max_size=9)
    turns = data.draw(st.lists(st.tuples(words, words), min_size=1, max_size=3))
    chat = [said("system", data.draw(words))] if data.draw(st.booleans()) else []
    for user, assistant in turns:
        chat += [said("user", user), said("assistant", assistant)]
    has_more = data.draw(st.booleans())
    chat += [said("user", data.draw(words))] * has_more

    text, learned = render(template, chat)

    right = [ending.format(assistant) for _, assistant in turns]
    assert learned == right + ["[end]"] * (not has_more)
    at = 0
    for message in chat:
        if message["role"] != "system":
            at = text.index(message["content"], at) + len(message["content"])
    assert render(template, as_parts(chat, data.draw(st.integers(0, 9)))) == (
        text,
        learned,
    )


CALL: dict[str, Any] = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 1, "c": [True, None]}},
}
CALLING = [
    said("user", "1+1?"),
    said("assistant", None, tool_calls=[CALL]),
    said("tool", "2"),
    said("assistant", "It is 2", tool_calls=[]),
]


def test_calls_are_learned_as_json(render: Render) -> None:
    _, learned = render(QWEN_TOOLS, CALLING)

    arguments = '{"a": 1, "c": [true, null]}'
    call = f'{{"name": "add", "arguments": {arguments}}}'
    assert learned == [
        f"<tool_call>\n{call}\n</tool_call><|im_end|>\n",
        "It is 2<|im_end|>\n",
        "[end]",
    ]


ASKING = """{% for m in messages %}{% if m.content is none %}
{% set call = m.tool_calls[0].function %}
{{ 'A:' ~ call.name ~ call.arguments | tojson }}
{%- else %}{{ m.role[0] + ':' + m.content }}{% endif %}{{ '<end>' }}{% endfor %}
{% if add_generation_prompt %}{{ '' }}{% endif %}"""


def test_a_template_may_ask_whether_a_content_is_none(render: Render) -> None:
    calls = CALLING[1]["tool_calls"]

    text, _ = render(ASKING, CALLING)

    call = 'A:add{"a": 1, "c": [true, null]}'
    assert text == f"u:1+1?<end>{call}<end>t:2<end>a:It is 2<end>"
    for content in ({}, {"content": ""}):
        said_so = {"role": "assistant", "tool_calls": calls, **content}
        assert render(QWEN_TOOLS, [CALLING[0], said_so, *CALLING[2:]]) == render(
            QWEN_TOOLS, CALLING
        )


def test_a_table_with_two_tools_invents_no_arguments(render: Render) -> None:
    def call(**arguments: Any) -> dict[str, Any]:
        return {"function": {"name": "add", "arguments": arguments}}

    def rendered(**arguments: Any) -> str:
        calls = said("assistant", "", tool_calls=[call(**arguments)])
        return render(QWEN_TOOLS, [CALLING[0], calls])[0]

    assert rendered(a=None, of={"x": 1, "y": None}) == rendered(of={"x": 1})


def test_a_call_that_a_template_leaves_out_is_refused(render: Render) -> None:
    first = QWEN_TOOLS.replace(
        "in message.tool_calls %}", "in message.tool_calls[:1] %}"
    )
    other: dict[str, Any] = {"name": "subtract", "arguments": {}}

    assert "add" in render(first, CALLING)[0]
    for calls in ([CALL, other], [other, CALL]):
        with pytest.raises(ValueError, match=r"message 1 .*'tool_calls'"):
            render(first, [CALLING[0], said("assistant", "", tool_calls=calls)])
        both = render(QWEN_TOOLS, [CALLING[0], said("assistant", "", tool_calls=calls)])
        assert all(f'"name": "{name}"' in both[0] for name in ("add", "subtract"))


PAIR = [said("user", "one"), said("assistant", "two")]
PRINTING = [
    "{{ m.calls }}",
    "{{ m.calls[0] }}",
    "{{ m }}",
    "{{ messages }}",
    "{{ 'a' ~ m.calls }}",
    "{{ m.calls | string }}",
    "{{ m.calls | trim }}",
    "{{ '%s' % m.calls }}",
    "{{ '%s' | format(m.calls) }}",
    "{{ '{}'.format(m.calls) }}",
    "{{ m.calls | map('string') | join }}",
    "{{ m.calls[0].a[0] }}",
    "{{ m.calls[0].a[0] | string }}",
    "{{ m.calls[0].b }}",
    "{{ 'a' ~ m.calls[0].a[0] }}",
    "{{ 'a%s' % m.calls[0].a[0] }}",
    "{{ [m.role, m.calls[0].b] | join }}",
    "{% set line = m.role ~ m.calls[0].b %}{{ line }}",
    "{{ tools }}",
]


@pytest.mark.parametrize("printing", PRINTING)
def test_what_python_would_spell_is_refused(render: Render, printing: str) -> None:
    template = f"{{% for m in messages %}}{{{{ m.content }}}}{printing}{{% endfor %}}"
    calls = [{"a": [None], "b": True}]
    chat = [message | {"calls": calls} for message in PAIR]

    with pytest.raises(ValueError, match="as Python spells it"):
        render(template, chat)


@pytest.mark.parametrize("name", ["a[0]", "b"])
def test_a_word_of_the_template_hides_no_value_that_it_prints(
    render: Render, name: str
) -> None:
    template = (
        "None is True.{% for m in messages %}{{ m.content }}"
        f"{{{{ m.calls[0].{name} }}}}{{% endfor %}}"
    )
    calls = [{"a": [None], "b": True}]
    chat = [message | {"calls": calls} for message in PAIR]

    with pytest.raises(ValueError, match="as Python spells it"):
        render(template, chat)


REFUSED: list[tuple[Any, list[str]]] = [
    (said("user", [{"type": "image_url", "image_url": {}}]), ["0", "'image_url'"]),
    (said("user", [{"type": "text", "text": "a"}, {"type": "audio"}]), ["1", "audio"]),
    (said("user", [{"type": "tool_use", "input": {}}]), ["part 0", "tool_use"]),
    (said("user", [{"type": "refusal", "refusal": "no"}]), ["part 0", "refusal"]),
    (said("user", [{"type": "text", "text": None}]), ["part 0", "no text"]),
    (said("user", [{"type": "text", "text": 5}]), ["part 0", "no text"]),
    (said("user", [{"text": "a"}]), ["part 0", "no type"]),
    (said("user", ["a"]), ["part 0", "a text"]),
    (said("user", [None]), ["part 0", "null"]),
    (said("user", [["a"]]), ["part 0", "a list"]),
    (said("user", 5), ["the number 5"]),
    (said("user", 0), ["the number 0"]),
    (said("user", True), ["true"]),
    (said("user", False), ["false"]),
    (said("user", {"text": "a"}), ["an object"]),
    (said("user", {}), ["an object"]),
    (said("user", None), ["no content"]),
    (said("user", []), ["no content"]),
    (said("user", float("nan")), ["nan"]),
    (said("user", "a", at=b"x"), ["b'x'"]),
    (said("user", "a", at={1: "x"}), ["names"]),
    ({"content": "a"}, ["no role"]),
    (said("user", [{"type": "text", "text": "a", "by": "x"}]), ["part 0", "by"]),
    (said("user", "a", weight=0.5), ["weight", "the number 0.5", "0 or 1"]),
    (said("user", "a", weight=2), ["weight", "the number 2"]),
    (said("user", "a", weight=True), ["weight", "true"]),
    (said("user", "a", weight="0"), ["weight", "a text"]),
]


@pytest.mark.parametrize(("message", "named"), REFUSED)
def test_a_message_that_is_no_text_is_refused(
    render: Render, message: Any, named: list[str]
) -> None:
    for template in (PLAIN, CHATML, GEMMA_3, VISION):
        with pytest.raises(ValueError, match="message 2") as found:
            render(template, [*PAIR, message, PAIR[1]])

        assert all(each in str(found.value) for each in named)


@pytest.mark.parametrize("role", ["developer", "tool", "function", "gpt"])
def test_a_message_that_a_template_leaves_out_is_refused(
    render: Render, role: str
) -> None:
    chat = [said(role, "hello"), *PAIR]

    assert "hello" in render(CHATML, chat)[0]
    for template in (PHI, DEEPSEEK, ZEPHYR):
        with pytest.raises(ValueError, match=f"message 0 .*'{role}'.*--chat"):
            render(template, chat)


def test_the_end_is_learned_if_what_is_marked_is_said_last(render: Render) -> None:
    marked = MARKED.replace("message.role == 'assistant'", "message.train")
    chat = [*PAIR, *PAIR]

    for trains in ((False, True), (True, False), (True, True)):
        for number, is_learned in zip((1, 3), trains, strict=True):
            chat[number] = chat[number] | {"train": is_learned}

        _, learned = render(marked, chat)

        assert learned == ["two<eos>"] * sum(trains) + ["[end]"] * trains[1]


MORE: dict[str, Any] = {
    "reasoning_content": "because",
    "thinking": "because",
    "reasoning": [{"type": "text", "text": "because"}],
    "name": "because",
    "refusal": "because",
    "function_call": {"name": "because", "arguments": "{}"},
    "audio": {"id": "because"},
    "tool_calls": [{"function": {"name": "add", "arguments": {"a": "because"}}}],
    "documents": {"first": ["because"]},
    "train": False,
    "score": 5,
}


@pytest.mark.parametrize("name", MORE)
def test_what_a_message_says_is_written_or_refused(render: Render, name: str) -> None:
    num_written = 0
    templates = {**FAMILIES, "qwen 3": (QWEN_3, "")}
    written = f"{{{{ message.{name} | tojson if message.{name} is defined }}}}"
    templates["its own"] = (
        PLAIN.replace("{{ message['content'] }}", written + "{{ message.content }}"),
        "",
    )

    for template, _ in templates.values():
        for number in (0, 1):
            chat = [*PAIR]
            chat[number] = chat[number] | {name: MORE[name]}
            try:
                text, _ = render(template, chat)
            except ValueError as error:
                problem, text = str(error), ""
            else:
                num_written += 1
                problem = ""
            named = f"message {number} ", repr(name), "--chat"
            told = json.dumps(MORE[name]) in text or "because" in text
            assert told or all(each in problem for each in named)

    assert num_written >= 2


def test_ids_and_other_fields_that_are_no_text_change_nothing(render: Render) -> None:
    more = {"id": "5", "at": None, "tags": ["a"], "metadata": {"from": "web"}}
    answer = said("tool", "4", name="add", tool_call_id="abcdefghi")

    for template, _ in FAMILIES.values():
        extended = [message | more for message in PAIR]
        assert render(template, extended) == render(template, PAIR)
    assert render(CHATML, [answer, *PAIR]) == render(CHATML, [said("tool", "4"), *PAIR])


@pytest.mark.parametrize("family", [*FAMILIES, "qwen 3"])
@settings(max_examples=40)
@given(data=st.data())
def test_each_text_stands_in_the_chat_or_is_refused(
    render: Render, family: str, data: st.DataObject
) -> None:
    template = FAMILIES.get(family, (QWEN_3, ""))[0]
    words = ["<think>", "</think>", "\n", "\n\n", " ", "xy", "x", "'", "{{", "\\n"]
    texts = st.lists(st.sampled_from(words), min_size=1, max_size=6).map("".join)
    texts = texts.filter(lambda text: text.strip() != "")
    turns = data.draw(st.lists(st.tuples(texts, texts), min_size=1, max_size=2))
    chat: list[Any] = []
    for user, assistant in turns:
        chat += [said("user", user), said("assistant", assistant)]
        if family == "qwen 3" and data.draw(st.booleans()):
            chat[-1]["reasoning_content"] = data.draw(texts)

    problem, text, learned = "", "", list[str]()
    try:
        text, learned = render(template, chat)
    except ValueError as error:
        problem = str(error)
    if problem:
        assert family in ("deepseek", "qwen 3")  # They cut texts; the others do not.
        assert problem.startswith("message ")
        assert "--chat" in problem
        return

    at = 0
    for message in chat:
        if message["role"] == "user":
            at = text.index(message["content"].strip(), at) + 1
    said_last = [each for each in learned if each != "[end]"]
    for answer, part in zip(chat[1::2], said_last, strict=True):
        assert answer["content"].strip() in part
        assert answer.get("reasoning_content", "").strip() in part


def test_an_answer_that_a_template_cuts_is_refused(render: Render) -> None:
    thought = said("assistant", "<think>\nso\n</think>\n\nfour")
    chat = [said("user", "2+2?"), thought]

    for template in (DEEPSEEK, QWEN_3.replace("reasoning.strip", "''.strip")):
        with pytest.raises(ValueError, match=r"message 1 .* cuts.*--chat"):
            render(template, chat)
        # The same text said again, and whole, does not hide the one that is cut.
        with pytest.raises(ValueError, match=r"message \d .* (cuts|otherwise)"):
            render(template, [*chat, *chat])
    assert render(QWEN_3, chat)[1][0] == thought["content"] + "<|im_end|>\n"


def test_what_has_weight_0_is_read_and_not_learned(render: Render) -> None:
    silent = said("assistant", "<think>\nso\n</think>\n\nfour", weight=0)
    last = said("assistant", "six", weight=1, reasoning_content="thus")
    chat = [said("user", "2+2?"), silent, said("user", "3+3?"), last]

    text, learned = render(QWEN_3, chat)

    assert "<|im_start|>assistant\nfour<|im_end|>" in text
    assert learned == ["<think>\nthus\n</think>\n\nsix<|im_end|>\n", "[end]"]
    silent = silent | {"content": "four", "reasoning_content": "so"}
    assert render(QWEN_3, [chat[0], silent, *chat[2:]]) == (text, learned)


def test_weight_0_lets_a_template_cut_an_answer_and_nothing_else(
    render: Render,
) -> None:
    template = CHATML.replace("['content'] +", "['content'].split('|')[-1] +")
    answer = said("assistant", "4", weight=1)

    for asked in (
        said("user", "2|3?", weight=0),
        said("user", "3?", weight=0, name="Ann"),
    ):
        with pytest.raises(ValueError, match=r"message 0 .*'(content|name)'") as caught:
            render(template, [asked, answer])
        assert "weight" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_say_what_is_learned(render: Render, family: str) -> None:
    template, ending = FAMILIES[family]
    turns = [said("user", "xx"), said("assistant", "yy"), said("user", "xy")]

    for weights in ((0, 1), (1, 0), (1, 1), (1.0, 0.0), (None, 0), (0, None)):
        chat = [*turns, said("assistant", "yx")]
        for number, weight in zip((1, 3), weights, strict=True):
            chat[number] = chat[number] | {"weight": weight}
        text, learned = render(template, chat)

        right = [
            ending.format(answer)
            for answer, weight in zip(("yy", "yx"), weights, strict=True)
            if weight != 0
        ]
        assert learned == right + ["[end]"] * (weights[1] != 0)
        bare = [{**each, "weight": None} for each in chat]
        assert text == render(template, bare)[0]
    with pytest.raises(ValueError, match="nothing that the assistant says"):
        render(template, [said("user", "xx"), said("assistant", "yy", weight=0)])


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_answer_is_learned_as_any_other(render: Render, blank: str) -> None:
    empty, last = said("assistant", blank), said("assistant", "two")

    assert render(MARKED, [PAIR[0], empty])[1] == [f"{blank}<eos>", "[end]"]
    chat = [PAIR[0], empty | {"weight": 0}, PAIR[0], last]
    assert render(MARKED, chat)[1] == ["two<eos>", "[end]"]


def test_a_chat_that_begins_with_the_assistant_says_what_is_unknown(
    render: Render,
) -> None:
    looks = "{{ messages[0].role[:0] }}"
    looking = looks + CHATML
    bare = looks + "{% for m in messages %}{{ m.content }}{% endfor %}"

    for template, first in ((looking, "Hello"), (bare, "? Hello")):
        with pytest.raises(ValueError, match=r"message 0 is rendered .*weight 0"):
            render(template, [said("assistant", first), *PAIR])
    assert render(looking, [said("assistant", "Hello", weight=0), *PAIR])[1] == [
        "two<|im_end|>\n",
        "[end]",
    ]


def test_a_mark_around_several_messages_has_no_single_weight(render: Render) -> None:
    marked = (
        "{% generation %}{% for message in messages %}{{ message.role }}: "
        "{{ message.content }}\n{% endfor %}{% endgeneration %}"
    )

    assert render(marked, PAIR)[1] == ["user: one\nassistant: two\n", "[end]"]
    with pytest.raises(ValueError, match=r"weight 0.*generation"):
        render(marked, [PAIR[0], PAIR[1] | {"weight": 0}, *PAIR])


def test_json_is_written_as_transformers_does(render: Render) -> None:
    template = """{% for m in messages %}{{ m.content }}
    {{- {'b': 'é', 'a': none} | tojson(ensure_ascii=true, sort_keys=true, indent=1,
    separators=(',', ':')) }}{% endfor %}"""
    told = json.dumps({"a": None, "b": "é"}, indent=1, separators=(",", ":"))

    assert render(template, PAIR)[0] == f"one{told}two{told}"
