"""Mutations of a manifest that change its JSON or text but have a correct checksum.

An attacker could make such manifests. A mutation is a function of the manifest, a
random generator and the manifests of all samples.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator


def of_json(manifest: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Change some values, and correct the checksum."""
    table = json.loads(manifest)
    del table["crc32"]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        chance.choice(CHANGES)(table, chance, [json.loads(each) for each in others])
    text = json.dumps(table, ensure_ascii=chance.random() < 0.1, separators=(",", ":"))
    return sealed(text[:-1].encode(errors="surrogatepass"))


def of_text(manifest: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    """Insert odd text, or text that is not JSON, and correct the checksum."""
    body = manifest[: manifest.rindex(b',"crc32"')]
    at = chance.choice([n for n in range(1, len(body)) if body[n - 1] in b":,[{"])
    new = chance.choice(SPELLINGS)
    return sealed(body[:at] + new + body[at:])


def sealed(body: bytes) -> bytes:
    """Return a manifest: a JSON object without its closing brace, and the checksum."""
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


SPELLINGS = (
    b'"dtype":"uint8",',
    b'"shards":{},',
    b'"versions":[],',
    b'"tokens":[1],',
    b" ",
    b"\n\t",
    b"1e400,",
    b"NaN,",
    b"-",
    b"0",
    b"0.0",
    b"9" * 5000,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'"\\ud800",',
    b"\xff",
    b"\x00",
)


def nodes(value: Any) -> Iterator[Any]:
    """Yield all lists and objects of a JSON value, the outermost first."""
    if isinstance(value, dict | list):
        yield value
        members = cast("dict[str, Any] | list[Any]", value)
        for member in members.values() if isinstance(members, dict) else members:
            yield from nodes(member)


def entries(value: Any) -> list[tuple[Any, Any]]:
    """Return every list or object, with each index or key of it."""
    return [
        (node, key)
        for node in nodes(value)
        for key in (node if isinstance(node, dict) else range(len(node)))
    ]


def tables(value: Any) -> list[list[list[Any]]]:
    """Return, for each object with several lists of one length above 0, these lists."""
    found: list[list[list[Any]]] = []
    for node in nodes(value):
        if not isinstance(node, dict):
            continue
        members = cast("dict[str, Any]", node).values()
        lists = [cast("list[Any]", each) for each in members if isinstance(each, list)]
        if len(lists) > 1 and len({*map(len, lists)}) == 1 and lists[0]:
            found.append(lists)
    return found


def replace_value(table: Any, chance: random.Random, _others: list[Any]) -> None:
    node, key = chance.choice(entries(table))
    node[key] = chance.choice(HOSTILE)


def change_number(table: Any, chance: random.Random, _others: list[Any]) -> None:
    numbers = [(node, key) for node, key in entries(table) if type(node[key]) is int]
    if numbers:
        node, key = chance.choice(numbers)
        old = node[key]
        new = (old + 1, old - 1, old * 2, old // 2, -old, 0, 1, 2**31, 2**40, 2**63 - 1)
        node[key] = chance.choice(new)


def change_text(table: Any, chance: random.Random, _others: list[Any]) -> None:
    texts = [(node, key) for node, key in entries(table) if type(node[key]) is str]
    node, key = chance.choice(texts)
    old = node[key] or "x"
    at = chance.randrange(len(old))
    node[key] = chance.choice(
        (
            old[:at] + chance.choice("0f_./\\é") + old[at + 1 :],
            old[:at],
            old + old,
            old.upper(),
            f"../{old}",
            f"sub/{old}",
            f"/{old}",
        )
    )


def delete_entry(table: Any, chance: random.Random, _others: list[Any]) -> None:
    node, key = chance.choice(entries(table))
    del node[key]


def duplicate_entry(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = [(node, key) for node, key in entries(table) if isinstance(node, list)]
    if lists:
        node, key = chance.choice(lists)
        node.insert(chance.randint(0, len(node)), node[key])


def swap_values(table: Any, chance: random.Random, _others: list[Any]) -> None:
    leaves = [
        (node, key)
        for node, key in entries(table)
        if not isinstance(node[key], dict | list)
    ]
    (one, a), (two, b) = chance.choices(leaves, k=2)
    one[a], two[b] = two[b], one[a]


def swap_in_list(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = [node for node in nodes(table) if isinstance(node, list) and len(node) > 1]
    if lists:
        chosen = cast("list[Any]", chance.choice(lists))
        a, b = chance.sample(range(len(chosen)), 2)
        chosen[a], chosen[b] = chosen[b], chosen[a]


def shuffle_list(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = [node for node in nodes(table) if isinstance(node, list) and len(node) > 1]
    if lists:
        chance.shuffle(cast("list[Any]", chance.choice(lists)))


def delete_row(table: Any, chance: random.Random, _others: list[Any]) -> None:
    """Delete one entry of all lists of an object, for example a shard."""
    lists = chance.choice(tables(table) or [[[0]]])
    at = chance.randrange(len(lists[0]))
    for each in lists:
        del each[at]


def duplicate_row(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = chance.choice(tables(table) or [[[0]]])
    at, to = chance.randrange(len(lists[0])), chance.randint(0, len(lists[0]))
    for each in lists:
        each.insert(to, each[at])


def swap_rows(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = chance.choice(tables(table) or [[[0]]])
    a, b = chance.choices(range(len(lists[0])), k=2)
    for each in lists:
        each[a], each[b] = each[b], each[a]


def take_from_other(table: Any, chance: random.Random, others: list[Any]) -> None:
    """Replace a member by the same member of another manifest."""
    other = chance.choice(others)
    key = chance.choice(list(table))
    if key in other:
        table[key] = other[key]


def move_tokens(table: Any, chance: random.Random, _others: list[Any]) -> None:
    """Move a part of a count from one entry of a list to another; keep the sum."""
    lists = [
        cast("list[Any]", node)
        for node in nodes(table)
        if isinstance(node, list)
        and len(node) > 1
        and {*map(type, cast("list[Any]", node))} == {int}
    ]
    if lists:
        counts = chance.choice(lists)
        a, b = chance.sample(range(len(counts)), 2)
        moved = chance.choice((1, counts[a] // 2, counts[a]))
        counts[a] -= moved
        counts[b] += moved


CHANGES: tuple[Callable[[Any, random.Random, list[Any]], None], ...] = (
    replace_value,
    change_number,
    change_text,
    delete_entry,
    duplicate_entry,
    swap_values,
    swap_in_list,
    shuffle_list,
    delete_row,
    duplicate_row,
    swap_rows,
    take_from_other,
    move_tokens,
)
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, "", "x", [], {}, [[]], [None], {"": None}),
    *(0, 1, -1, 2, 7, 512, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400),
    *(0.5, 1.0, -0.0, 1e300, float("nan"), float("inf")),
    *("uint8", "int16", "uint32", "float32", "bfloat16", "object", "U999999999"),
    *("../c_00000.rox", "/etc/passwd", "c_00000.rox", "c_manifest.json", ".", ".."),
    *("\0", "a\nb", "\ud800", "0" * 64, "f" * 64, "0" * 32, "x" * 100_000),
    *(list(range(10_000)), {str(number): number for number in range(10_000)}),
)
