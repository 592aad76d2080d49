"""A record is read as it was written, or refused with one error."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_store.records import (
    RecordError,
    RecordKind,
    as_json,
    checksum_of,
    find_object,
    parse_object,
    seal,
)

if TYPE_CHECKING:
    from pathlib import Path

PLAN = RecordKind(
    "plan", 3, remedy="plan again", other_remedy="use an older release", mark="a plan"
)
OPEN = RecordKind(
    "run record", 1, remedy="restore it", needs=("data",), is_sealed=False
)

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
NAMES = st.text().filter(lambda name: name not in {"format", "version", "crc32"})


@settings(max_examples=10)
@given(st.dictionaries(NAMES, VALUES, max_size=4), st.booleans(), st.booleans())
def test_a_record_gives_back_its_members(
    members: dict[str, Any], is_sealed: bool, is_ascii: bool
) -> None:
    kind = replace(PLAN, is_sealed=is_sealed, is_ascii=is_ascii)

    assert kind.parse(kind.to_bytes(members), "a") == members


def test_a_member_that_is_there_twice_is_refused() -> None:
    with pytest.raises(RecordError, match=r"a\.json.*'steps' twice.*; restore it"):
        parse_object('{"of": {"steps": 1, "b": 2, "steps": 3}}', "a.json", "restore it")


def test_every_flipped_bit_of_a_sealed_record_is_found() -> None:
    data = PLAN.to_bytes({"units": [1, 2], "name": "é"})

    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError, match=r"a\.plan.*damaged.*; plan again"):
            PLAN.parse(bytes(damaged), "a.plan")


def test_every_shorter_sealed_record_is_found() -> None:
    data = PLAN.to_bytes({"units": [1, 2]})

    for size in range(len(data)):
        with pytest.raises(RecordError, match="damaged"):
            PLAN.parse(data[:size], "a.plan")


def test_text_that_utf_8_cannot_encode_survives() -> None:
    members = {"path": os.fsdecode(b"caf\xe9")}

    assert PLAN.parse(PLAN.to_bytes(members), "a") == members


def test_a_record_of_another_kind_is_not_called_damaged() -> None:
    other = RecordKind("receipt", 1, remedy="", mark="receipt", is_sealed=False)
    mine = RecordKind("plan", 1, remedy="plan again", mark="plan")
    damaged = mine.to_bytes({"a": 1}).replace(b'"a":1', b'"a":2')

    with pytest.raises(ValueError, match="is 'receipt', not a plan; plan again"):
        mine.parse(other.to_bytes({"a": 1}), "x.json")
    with pytest.raises(ValueError, match="does not match its checksum"):
        mine.parse(damaged, "x.json")
    with pytest.raises(ValueError, match="does not match its checksum"):
        mine.parse(b'{"a":1}', "x.json")


def test_a_checksum_is_that_of_the_bytes_before_it() -> None:
    data = seal({"a": 1})

    assert data == b'{"a":1,"crc32":"%08x"}\n' % (checksum_of(data) or 0)
    assert checksum_of(data[1:]) is None
    assert checksum_of(b"") is None


@pytest.mark.parametrize("version", [2, 4, True, None, "3", 3.0, [[]]])
def test_another_version_is_not_called_damaged(version: object) -> None:
    data = seal({"format": "a plan", "version": version})

    with pytest.raises(RecordError) as error:
        PLAN.parse(data, "a.plan")

    assert "a.plan" in str(error.value)
    assert f"version {version!r}" in str(error.value)
    assert "reads version 3; use an older release" in str(error.value)
    assert "damaged" not in str(error.value)


def test_a_record_of_another_kind_is_named() -> None:
    with pytest.raises(RecordError, match=r"b: is 'a unit', not a plan; plan again"):
        PLAN.parse(seal({"format": "a unit", "version": 3}), "b")


def test_a_missing_member_is_named() -> None:
    with pytest.raises(RecordError, match=r"run\.json.*'data'; restore it"):
        OPEN.parse(b'{"version": 1}', "run.json")


def test_damage_and_another_version_raise_the_errors_of_the_kind() -> None:
    kind = replace(PLAN, error=KeyError, other_error=IndexError)

    with pytest.raises(KeyError):
        kind.parse(b"{}", "a")
    with pytest.raises(KeyError):
        kind.parse(seal({"version": 3}), "a")
    with pytest.raises(IndexError):
        kind.parse(seal({"format": "a plan", "version": 4}), "a")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b"3", b'{"a": 1} x', b'"\xff"', b"[" * 99_999]
)
def test_what_is_no_object_is_named_with_the_remedy(data: bytes) -> None:
    with pytest.raises(RecordError, match=r"state\.json.*JSON.*; save it again"):
        parse_object(data, "state.json", "save it again")
    assert find_object(data) is None


def test_lists_that_need_far_more_memory_than_the_file_are_refused() -> None:
    data = b'{"a":[' + b"[]," * (1 << 21) + b"[]]}"

    with pytest.raises(RecordError, match="2097155 lists and objects"):
        parse_object(data, "a.json", "check it")


def test_a_file_gives_its_record(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(OPEN.to_bytes({"data": [1]}))

    assert OPEN.read(path) == {"data": [1]}
    assert json.loads(path.read_text("utf-8")) == {"version": 1, "data": [1]}
    assert find_object(path.read_bytes()) == {"version": 1, "data": [1]}


def test_a_pipe_or_a_folder_is_no_record_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")

    with pytest.raises(RecordError, match=r"run\.json: is a pipe or .*; restore it"):
        OPEN.read(tmp_path / "run.json")
    with pytest.raises(RecordError, match=r"is a folder.*; restore it"):
        OPEN.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        OPEN.read(tmp_path / "absent")


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate((1 << 28) + 1)

    with pytest.raises(RecordError, match=r"268435457 bytes.*268435456; restore it"):
        OPEN.read(path)


def test_a_value_is_given_back_as_json_does() -> None:
    assert as_json({1: (2, [None])}) == {"1": [2, [None]]}
    with pytest.raises(TypeError):
        as_json({"a": object()})
