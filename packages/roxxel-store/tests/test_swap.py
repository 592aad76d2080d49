"""A manifest over immutable objects: who begins last wins, and nothing else is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from roxxel_store.client import Answer, Bucket, Listed, Listing, ObjectVersion, Version
from roxxel_store.records import RecordError
from roxxel_store.swap import MANIFEST, SupersededError, Writer, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable

URL = "s3://data/run"


class Memory(Bucket):
    """Objects in memory, which have a new version after every replacement."""

    def __init__(self) -> None:
        super().__init__(URL, 60)
        self.objects: dict[str, bytes] = {}
        self.number = 0

    def get(
        self,
        name: str,
        span: tuple[int, int] | None = None,
        most_bytes: int | None = None,
    ) -> Answer:
        del span, most_bytes
        if name not in self.objects:
            raise FileNotFoundError(name)
        data, tag = self.objects[name], f"{self.number}"
        return Answer(data, len(data), tag, Version(tag, None))

    def replace(
        self, name: str, data: bytes, version: Version | None
    ) -> Version | None:
        now = Version(f"{self.number}", None) if name in self.objects else None
        if version != now:
            return None
        self.objects[name] = data
        self.number += 1
        return Version(f"{self.number}", None)

    def names(self, prefix: str = "") -> Listing:
        below = [n.removeprefix(prefix) for n in self.objects if n.startswith(prefix)]
        return Listing(
            {n: Listed(ObjectVersion(0, ""), 0.0) for n in below if "/" not in n},
            sorted({name.partition("/")[0] for name in below if "/" in name}),
        )

    def sizes(self, prefix: str) -> dict[str, int]:
        return {
            name.removeprefix(prefix): len(data)
            for name, data in self.objects.items()
            if name.startswith(prefix)
        }

    def delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            self.objects.pop(name, None)


def commit(writer: Writer, label: str) -> str:
    """Upload an object in a folder, and list nothing else."""
    name = writer.new_name(label)
    assert isinstance(writer.bucket, Memory)
    writer.bucket.objects[f"{name}/data"] = b""
    writer.swap(lambda _: {"names": [name]})
    return name


def test_a_program_that_was_taken_over_changes_nothing() -> None:
    bucket = Memory()
    earlier, later = Writer(bucket), Writer(bucket)
    earlier.begin()
    commit(earlier, "1.")
    later.begin()
    kept = commit(later, "2.")

    with pytest.raises(SupersededError, match=rf"^{URL}: another program"):
        commit(earlier, "3.")

    assert read_manifest(bucket).names() == {kept}
    later.collect()
    assert {name.partition("/")[0] for name in bucket.objects} == {MANIFEST, kept}


def test_what_an_earlier_program_listed_stays_while_it_is_listed() -> None:
    bucket = Memory()
    earlier, later = Writer(bucket), Writer(bucket)
    earlier.begin()
    kept = commit(earlier, "1.")
    earlier.drop([kept])  # as after a commit whose answer was lost

    earlier.collect()
    later.begin()
    later.collect()

    assert f"{kept}/data" in bucket.objects


def test_a_program_takes_over_only_what_it_has_seen() -> None:
    bucket = Memory()
    Writer(bucket).begin()
    before = read_manifest(bucket)
    Writer(bucket).begin()

    with pytest.raises(SupersededError, match="another program"):
        Writer(bucket).ensure_begun(before)
    assert Writer(bucket).ensure_begun(read_manifest(bucket))


def test_what_a_program_has_not_listed_yet_stays_until_it_is_dropped() -> None:
    bucket = Memory()
    writer = Writer(bucket)
    writer.begin()
    uploaded = f"{writer.new_name('2.')}/data"
    bucket.objects[uploaded] = b""

    commit(writer, "1.")
    writer.collect()
    assert uploaded in bucket.objects

    writer.drop([uploaded.removesuffix("/data")])
    writer.collect()
    assert uploaded not in bucket.objects


def test_a_swap_that_is_repeated_because_its_answer_was_lost_has_been_made() -> None:
    class Silent(Memory):
        def replace(
            self, name: str, data: bytes, version: Version | None
        ) -> Version | None:
            assert self.number < 9, "it was tried again and again"
            super().replace(name, data, version)
            return None  # the store refuses the repeated request

    bucket = Silent()
    writer = Writer(bucket)
    writer.begin()
    names = {commit(writer, "1.")} | {commit(writer, "2.")}

    assert read_manifest(bucket).names() < names


def test_a_flipped_bit_in_a_manifest_is_found() -> None:
    bucket = Memory()
    Writer(bucket).begin()
    data = bytearray(bucket.objects[MANIFEST])
    data[20] ^= 1
    bucket.objects[MANIFEST] = bytes(data)

    with pytest.raises(RecordError, match=rf"^{URL}/{MANIFEST}: .* damaged"):
        read_manifest(bucket)


def test_objects_whose_manifest_is_gone_are_named() -> None:
    bucket = Memory()
    writer = Writer(bucket)
    writer.begin()
    name = commit(writer, "1.")
    del bucket.objects[MANIFEST]

    with pytest.raises(RecordError, match=rf"^{URL}: holds {name}, but {MANIFEST}"):
        Writer(bucket).begin()
    with pytest.raises(SupersededError, match=rf"^{URL}/{MANIFEST}: is gone"):
        writer.ensure_begun()
