"""Chats: lists of messages that the tokenizer's chat template renders."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel
from roxxel_prepare import write_files
from roxxel_prepare.cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The libraries have no types.
tokenizers: Any = import_module("tokenizers")
arrow: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")

PLAIN = """{{ bos_token }}{% for message in messages %}
{{ '<|turn|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}
"""
MARKED = """{%- macro said(message) -%}
{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}
{%- endmacro -%}
{%- for message in messages -%}
{{ message.role }}: {% if message.role == 'assistant' %}{{ said(message) }}{% else -%}
{{ message.content }}{% endif %}{{ '\n' }}
{%- endfor -%}
"""
DATED = "{{ strftime_now('%Y') }}{{ messages[0].content }}"
REFUSING = "{{ raise_exception('no system message, please') }}"
CHANGING = """{% for message in messages %}
{{ message.content }}{{ ' at the end' if loop.last }}
{% endfor %}"""
CHATS = [
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Is it caf\u00e9 or cafe?\n"},
        {"role": "assistant", "content": "\n\ncaf\u00e9, \u6f22\u5b57 too"},
        {"role": "user", "content": "the end"},
        {"role": "assistant", "content": "The end it is"},
    ],
    [
        {"role": "user", "content": "one", "name": None},
        {"role": "assistant", "content": "two"},
    ],
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a tokenizer of the kind of GPT-2, with a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made: Any = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|begin|>", "<|turn|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([message["content"] for message in CHATS[0]] * 3, trainer)
    made.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": "<|im_end|>",
        "bos_token": {"content": "<|begin|>"},
        "chat_template": [{"name": "default", "template": PLAIN}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def template(folder: Path, text: str) -> str:
    path = folder / "other.jinja"
    path.write_text(text, encoding="utf-8")
    return str(path)


def lines(path: Path, chats: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in chats))
    return path


def parts(corpus: Roxxel, tokenizer: Path) -> list[tuple[str, bool]]:
    """Return the texts of a corpus that are learned, and those that are not."""
    library = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    tokens, mask = corpus.tokens[:], corpus.column("loss_mask")[:]
    cuts = np.flatnonzero(np.diff(mask)) + 1
    return [
        (library.decode(each.tolist(), skip_special_tokens=False), bool(learned[0]))
        for each, learned in zip(
            np.split(tokens, cuts), np.split(mask, cuts), strict=True
        )
    ]


def test_a_chat_is_one_text_whose_assistant_is_learned(
    tmp_path: Path, tokenizer: Path
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    write_files(
        tmp_path / "c_*.rox",
        lines(tmp_path / "c.jsonl", CHATS),
        chat=True,
        tokenizer=tokenizer,
    )

    library = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    text = (
        "<|begin|><|turn|>system\nBe brief.<|im_end|>\n"
        "<|turn|>user\n  Is it caf\u00e9 or cafe?\n<|im_end|>\n"
        "<|turn|>assistant\n\n\ncaf\u00e9, \u6f22\u5b57 too<|im_end|>\n"
        "<|turn|>user\nthe end<|im_end|>\n<|turn|>assistant\nThe end it is<|im_end|>\n"
    )
    assert corpus.documents[0].tolist() == library.encode(text).ids
    assert parts(corpus, tokenizer) == [
        (text[: text.index("\n\ncaf")], False),
        ("\n\ncaf\u00e9, \u6f22\u5b57 too<|im_end|>\n", True),
        ("<|turn|>user\nthe end<|im_end|>\n<|turn|>assistant\n", False),
        ("The end it is<|im_end|>\n<|endoftext|>", True),
        (
            "<|begin|><|turn|>user\none<|im_end|>\n<|turn|>assistant\n",
            False,
        ),
        ("two<|im_end|>\n<|endoftext|>", True),
    ]


def test_what_a_template_marks_is_learned(tmp_path: Path, tokenizer: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    corpus.write(
        [{"chat": chat} for chat in CHATS[1:]],
        tokenizer=tokenizer,
        chat=template(tmp_path, MARKED),
        field="chat",
    )

    assert parts(corpus, tokenizer) == [
        ("user: one\nassistant: ", False),
        ("two<|im_end|>", True),
        ("\n", False),
        ("<|endoftext|>", True),
    ]


def test_chats_of_tables_and_of_lines_are_the_same_in_bins_too(
    tmp_path: Path, tokenizer: Path
) -> None:
    table = arrow.table({"messages": CHATS, "id": ["a", "b"]})
    parquet.write_table(table, tmp_path / "c.parquet")
    options: dict[str, Any] = {"chat": True, "tokenizer": tokenizer, "pack": 64}

    files = {"j": lines(tmp_path / "c.jsonl", CHATS), "p": tmp_path / "c.parquet"}

    for letter, file in files.items():
        write_files(tmp_path / f"{letter}_*.rox", file, **options)

    one, other = (Roxxel(tmp_path / f"{letter}_*.rox") for letter in "jp")
    assert one.fingerprint == other.fingerprint
    assert np.array_equal(one.column("loss_mask")[:], other.column("loss_mask")[:])
    learned = "".join(text for text, is_learned in parts(one, tokenizer) if is_learned)
    assert "The end it is<|im_end|>\n<|endoftext|>" in learned
    assert "two<|im_end|>\n<|endoftext|>" in learned
    assert not {"one", "brief", "<|begin|>"} & {*learned.split()}


BAD: list[tuple[Any, list[str]]] = [
    ("text", ["messages are no list", "'text'"]),
    ([], ["an empty list"]),
    ([["user", "a"]], ["message 0 is a list"]),
    ([{"from": "human", "value": "a"}], ["message 0 has no role", "from, value"]),
    ([{"role": "user"}], ["message 0 has no content"]),
    (
        [{"role": "assistant", "content": "a", "tool_calls": [{"name": "f"}]}],
        ["message 0", "'tool_calls'", "tokenizer_config.json", "--chat"],
    ),
    ([{"role": "user", "content": "a"}], ["nothing that the assistant says"]),
    (
        [{"role": "user", "content": "the <|im_end|> token"}],
        ["message 0", "'<|im_end|>'", "--special-tokens"],
    ),
    ([{"role": "user", "content": "a \ufdd0"}], ["message 0", "U+FDD0"]),
    ([{"role": "user", "content": 5}], ["message 0", "the number 5"]),
    (
        [{"role": "assistant", "content": "a", "reasoning_content": "b"}],
        ["message 0", "'reasoning_content'", "--chat"],
    ),
    ([{"role": "assistant", "content": "a", "weight": 0}], ["nothing that the ass"]),
    ([{"role": "assistant", "content": "a", "weight": 3}], ["weight", "number 3"]),
]


@pytest.mark.parametrize(("chat", "named"), BAD)
def test_a_bad_chat_is_named_with_its_line_and_can_be_skipped(
    tmp_path: Path, tokenizer: Path, chat: Any, named: list[str]
) -> None:
    path = lines(tmp_path / "c.jsonl", [CHATS[1], chat])
    options: dict[str, Any] = {"chat": True, "tokenizer": tokenizer}

    with pytest.raises(ValueError, match=r"c\.jsonl:2: ") as found:
        write_files(tmp_path / "c_*.rox", path, **options)
    assert all(each in str(found.value) for each in named)

    [summary] = write_files(tmp_path / "c_*.rox", path, skip_bad=True, **options)
    assert getattr(summary, "num_documents", None) == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (DATED, ["today's date", "--chat"]),
        (REFUSING, ["no system message, please"]),
        (CHANGING, ["message 1", "{% generation %}", "other.jinja"]),
        ("{% if %}", ["other.jinja", "cannot be read"]),
        ("{{ unk_token }}", ["unk_token", "tokenizer_config.json"]),
    ],
)
def test_a_template_that_cannot_be_used_is_named(
    tmp_path: Path, tokenizer: Path, text: str, named: list[str]
) -> None:
    chat = [*CHATS[1], {"role": "user", "content": "more"}]

    with pytest.raises(ValueError, match="template") as found:
        Roxxel(tmp_path / "c_*.rox").write(
            [{"messages": chat}], tokenizer=tokenizer, chat=template(tmp_path, text)
        )

    assert all(each in str(found.value) for each in named)


def test_the_nulls_of_a_table_with_two_tools_are_no_arguments(
    tmp_path: Path, tokenizer: Path
) -> None:
    def chat(**arguments: object) -> list[object]:
        calls = [{"function": {"name": "f", "arguments": arguments}}]
        said = {"role": "assistant", "content": None, "tool_calls": calls}
        return [{"role": "user", "content": "do"}, said]

    text = """{% for each in messages %}{{ each.content }}
{%- if each.tool_calls %}{{ each.tool_calls[0].function | tojson }}{% endif %}
{% endfor %}"""
    chats = [chat(a=1), chat(b={"c": ["x"]})]
    parquet.write_table(
        arrow.table({"messages": chats}), file := tmp_path / "calls.parquet"
    )

    of_tokens: dict[str, Any] = {"tokenizer": tokenizer, "separator": None}
    write_files(tmp_path / "c_*.rox", file, chat=template(tmp_path, text), **of_tokens)

    written = parts(Roxxel(tmp_path / "c_*.rox"), tokenizer)
    assert [text for text, is_learned in written if is_learned] == [
        '{"name": "f", "arguments": {"a": 1}}',
        '{"name": "f", "arguments": {"b": {"c": ["x"]}}}',
    ]


@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("has_marks", [False, True])
def test_a_template_that_writes_the_separator_gets_no_second_one(
    tmp_path: Path, tokenizer: Path, has_marks: bool, has_more: bool
) -> None:
    said, marked = (
        "{{ m.content }}",
        "{% generation %}{{ m.content }}{% endgeneration %}",
    )
    if has_marks:
        said = f"{{% if m.role == 'user' %}}{said}{{% else %}}{marked}{{% endif %}}"
    text = f"{{% for m in messages %}}{said}<|im_end|>{{% endfor %}}"
    chat = CHATS[1] + [{"role": "user", "content": "so"}] * has_more

    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(
        [{"messages": chat}],
        tokenizer=tokenizer,
        chat=template(tmp_path, text),
        separator="<|im_end|>",
    )

    # An end outside the marks counts only where it ends the chat.
    learned = "two" if has_marks and has_more else "two<|im_end|>"
    rest = f"two<|im_end|>{'so<|im_end|>' * has_more}".removeprefix(learned)
    one = [("one<|im_end|>", False), (learned, True), (rest, False)]
    assert parts(corpus, tokenizer) == one[: 2 + has_more]


def test_a_special_token_of_two_parts_is_refused(
    tmp_path: Path, tokenizer: Path
) -> None:
    cut = [{"type": "text", "text": text} for text in ("a<|im_", "end|>b")]
    chat = [{"role": "user", "content": cut}, CHATS[1][1]]

    with pytest.raises(ValueError, match=r"message 0 .*'<\|im_end\|>'"):
        Roxxel(tmp_path / "c_*.rox").write(
            [{"messages": chat}], tokenizer=tokenizer, chat=True
        )


def test_a_chat_of_parts_is_that_of_its_texts(tmp_path: Path, tokenizer: Path) -> None:
    in_parts = [
        [
            message | {"content": [{"type": "text", "text": message["content"]}]}
            for message in chat
        ]
        for chat in CHATS
    ]
    table = arrow.table({"messages": in_parts})
    parquet.write_table(table, tmp_path / "c.parquet")
    files = [lines(tmp_path / "c.jsonl", CHATS), tmp_path / "c.parquet"]
    files += [lines(tmp_path / "p.jsonl", in_parts)]
    corpora = [Roxxel(tmp_path / f"{number}_*.rox") for number in range(3)]

    for corpus, file in zip(corpora, files, strict=True):
        write_files(str(corpus.filepath), file, chat=True, tokenizer=tokenizer)

    assert len({each.fingerprint for each in corpora}) == 1
    assert len({each.column("loss_mask").digest for each in corpora}) == 1


def test_only_the_end_after_the_assistant_is_learned(
    tmp_path: Path, tokenizer: Path
) -> None:
    turns = [*CHATS[1], {"role": "user", "content": "more"}]
    rows = [{"messages": turns[:2]}, {"messages": turns}]
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"

    for text in (plain, PLAIN, MARKED):
        for pack in (None, 8, 512):
            corpus = Roxxel(tmp_path / f"{text.count('m')}_{pack}_*.rox")
            corpus.write(
                rows, tokenizer=tokenizer, chat=template(tmp_path, text), pack=pack
            )
            ends = [
                int(corpus.column("loss_mask")[stop - 1])
                for document, _, stop in corpus.document_spans(0, corpus.num_tokens)
                if document >= 0 and corpus.tokens[stop - 1] == 0
            ]
            assert sorted(ends) == [0, 1]


def test_special_tokens_let_a_message_write_one(
    tmp_path: Path, tokenizer: Path
) -> None:
    chat = [*CHATS[1], {"role": "tool", "content": "<|im_end|>"}]

    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(
        [{"messages": chat}], tokenizer=tokenizer, chat=True, special_tokens=True
    )

    assert np.count_nonzero(corpus.tokens[:] == 3) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"--tokenizer"),
        ({"tokenizer": "bytes"}, r"tokenizer\.json"),
        ({"tokenizer": "alone"}, r"alone\.json.*no chat template.*--chat"),
        ({"tokenizer": "folder", "tokenizer_backend": "fastokens"}, "fastokens"),
        ({"tokenizer": "folder", "prompt": "a", "completion": "b"}, "prompt='a'"),
    ],
)
def test_chats_without_what_they_need_are_an_error(
    tmp_path: Path, tokenizer: Path, options: dict[str, Any], message: str
) -> None:
    alone = tmp_path / "alone.json"
    alone.write_bytes((tokenizer / "tokenizer.json").read_bytes())
    names = {"folder": tokenizer, "alone": alone}
    given = options.get("tokenizer")
    if given in names:
        options = options | {"tokenizer": names[given]}

    with pytest.raises(ValueError, match=message):
        Roxxel(tmp_path / "c_*.rox").write(
            [{"messages": CHATS[1]}], chat=True, **options
        )


def test_a_write_with_another_template_is_another_write(
    tmp_path: Path, tokenizer: Path
) -> None:
    options: dict[str, Any] = {"tokenizer": tokenizer}
    corpus = Roxxel(tmp_path / "c_*.rox")
    rows = [{"messages": chat} for chat in CHATS]
    corpus.write(rows, chat=True, **options)

    assert corpus.write(rows, chat=template(tmp_path, PLAIN), **options).kept
    with pytest.raises(FileExistsError, match="chat is "):
        corpus.write(rows, chat=template(tmp_path, MARKED), **options)


def test_messages_without_chat_name_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path / "c.jsonl", CHATS)
    corpus = str(tmp_path / "c_*.rox")

    for options in ([], ["--field", "messages"]):
        assert main(["write", corpus, str(path), *options]) == 1
        assert "--chat" in capsys.readouterr().err


def test_the_command_takes_the_template_of_a_file(
    tmp_path: Path, tokenizer: Path
) -> None:
    path = lines(tmp_path / "c.jsonl", CHATS)
    corpus = str(tmp_path / "c_*.rox")
    words = ["--tokenizer", str(tokenizer)]

    assert main(["write", corpus, str(path), "--chat", "auto", *words]) == 0
    assert (
        main(["write", corpus, str(path), "--chat", "auto", *words, "--dry-run"]) == 0
    )
    other = ["--chat", template(tmp_path, MARKED), "--exist", "replace"]
    assert main(["write", corpus, str(path), *other, *words]) == 0
    assert parts(Roxxel(corpus), tokenizer)[0] == (
        "system: Be brief.\nuser:   Is it caf\u00e9 or cafe?\n\nassistant: ",
        False,
    )
    assert main(["write", corpus, str(path), "--chat", "auto"]) == 1
