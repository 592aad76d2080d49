"""JSON records: small files that say what a folder holds, written and read once here.

A record is a JSON object with a version: the manifest of a corpus, the plan of a
preparation, the settings of a run. Describe each kind once, as a `RecordKind`: it
writes and reads the files, and raises one error that names the file, the fault and the
remedy.

A sealed record has one more member at its end, `crc32`: the CRC-32 of all bytes before
it, in eight hexadecimal digits (docs/format.md, section 10.3). So a flipped bit in a
file that decides what is read is always found. Leave a record unsealed if people may
edit it.

For JSON that another program wrote, use `parse_object`. For the lines of a log, whose
last may be torn, use `find_object`.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.files import MAX_BYTES, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GREATEST_NUMBER = 1e300
"""Numbers of this absolute value or more count as missing: charts would overflow."""

_GREATEST_COUNT = 2**63  # of steps or tokens; a larger count means a damaged file

_TAIL = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n')
_TAIL_SIZE = len(b',"crc32":"00000000"}\n')
_MOST_CONTAINERS = 1 << 20
_BYTES_PER_CONTAINER = 32


class RecordError(ValueError):
    """A record is damaged, has another version, or is no record.

    Example:
        >>> try:
        ...     RecordKind("plan", 1, remedy="plan again").parse(b"{}", "a.plan")
        ... except RecordError as error:
        ...     print(error)
        a.plan: the plan does not match its checksum, so it is damaged; plan again
    """


@dataclass(frozen=True)
class RecordKind:
    """One kind of record: what its files hold, and what to do with a bad one.

    Attributes:
        name: What messages call a record, such as `"plan"`.
        version: The version that this release writes, and the only one it reads.
        remedy: What to do about a damaged record.
        error: Class of the error for a damaged record, called with a message.
        other_remedy: What to do about a record of another version.
        other_error: Class of the error for another version; `error` if None.
        mark: The member `format`, which tells this kind from others; None if records of
            this kind have no such member.
        needs: Members that a record must have.
        is_sealed: Whether a record ends with its checksum. Others are indented.
        is_ascii: Whether texts are escaped. Then they may hold paths that UTF-8 cannot
            encode.

    Example:
        >>> plan = RecordKind("plan", 1, remedy="plan again")
        >>> plan.parse(plan.to_bytes({"units": 3}), "a.plan")
        {'units': 3}
    """

    name: str
    version: int
    remedy: str
    error: Callable[[str], Exception] = RecordError
    other_remedy: str = "use the release that wrote it"
    other_error: Callable[[str], Exception] | None = None
    mark: str | None = None
    needs: tuple[str, ...] = ()
    is_sealed: bool = True
    is_ascii: bool = True

    def to_bytes(self, members: Mapping[str, Any]) -> bytes:
        """Return the content of a record's file."""
        mark = {} if self.mark is None else {"format": self.mark}
        table = {**mark, "version": self.version, **members}
        if self.is_sealed:
            return seal(table, is_ascii=self.is_ascii)
        text = json.dumps(table, ensure_ascii=self.is_ascii, indent=2)
        return f"{text}\n".encode()

    def parse(self, data: bytes, where: str) -> dict[str, Any]:
        """Return the members of a record, without format, version and checksum.

        Args:
            data: The content of the file.
            where: Path or URL of the file, for messages.

        Raises:
            RecordError: The record is damaged, has another version, or is no record.
                An `error` or an `other_error` is raised instead.
        """
        is_damaged = self.is_sealed and checksum_of(data) is None
        damage = (
            f"{where}: the {self.name} does not match its checksum, so it is damaged; "
            f"{self.remedy}"
        )
        try:
            table = parse_object(data, where, self.remedy, self.error)
        except self.error:
            if is_damaged:
                raise self.error(damage) from None
            raise
        mark = table.pop("format", None) if self.mark is not None else None
        # Without a checksum it is a file of another kind, unless it says nothing.
        if mark != self.mark and (not is_damaged or (mark and "crc32" not in table)):
            raise self.error(
                f"{where}: is {mark!r:.100}, not a {self.name}; {self.remedy}"
            )
        if is_damaged:
            raise self.error(damage)
        table.pop("crc32", None)
        version = table.pop("version", None)
        if type(version) is not int or version != self.version:
            raise (self.other_error or self.error)(
                f"{where}: the {self.name} has version {version!r:.100}, but this "
                f"release reads version {self.version}; {self.other_remedy}"
            )
        for name in self.needs:
            if name not in table:
                raise self.error(
                    f"{where}: is not a {self.name}, because it has no {name!r}; "
                    f"{self.remedy}"
                )
        return table

    def read(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the members of the record in a file; see `parse`.

        Raises:
            RecordError: As for `parse`, and if the path is no regular file, or the file
                is larger than `MAX_BYTES`.
            OSError: The file is missing, or cannot be read.
        """
        data = read_file(path, MAX_BYTES, self.error, self.remedy)
        return self.parse(data, os.fspath(path))


def seal(table: Mapping[str, Any], *, is_ascii: bool = True) -> bytes:
    """Return a JSON object of at least one member with its checksum."""
    text = json.dumps(table, ensure_ascii=is_ascii, separators=(",", ":"))
    return sealed(text[:-1].encode())


def sealed(body: bytes) -> bytes:
    """Return the text of a JSON object without its closing brace, with its checksum."""
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def unsealed(data: bytes) -> bytes:
    """Return the bytes that the checksum at the end of a sealed record covers."""
    return data[:-_TAIL_SIZE]


def checksum_of(data: bytes) -> int | None:
    """Return the checksum at the end of a record; None if it does not match."""
    tail = _TAIL.fullmatch(data[-_TAIL_SIZE:])
    if tail is None:
        return None
    found = zlib.crc32(memoryview(data)[:-_TAIL_SIZE])
    return found if found == int(tail[1], 16) else None


def parse_object(
    data: bytes | str,
    where: str,
    remedy: str,
    error: Callable[[str], Exception] = RecordError,
) -> dict[str, Any]:
    """Return the JSON object in a text.

    Args:
        data: The text.
        where: Path or URL of the text, for messages.
        remedy: What to do if the text is no JSON object.
        error: Class of the error.

    Raises:
        RecordError: The text is no JSON object, or would need far more memory than its
            size. An `error` is raised instead.
    """
    table = parse_value(data, where, remedy, error)
    if not isinstance(table, dict):
        kind = type(table).__name__
        raise error(f"{where}: holds a {kind}, not a JSON object; {remedy}")
    return cast("dict[str, Any]", table)


def parse_value(
    data: bytes | str,
    where: str,
    remedy: str,
    error: Callable[[str], Exception] = RecordError,
) -> Any:
    """Return the JSON value in a text, an object or not; see `parse_object`."""
    try:
        # Given bytes, `json` would guess UTF-16, and accept surrogates.
        raw, text = (
            (data.encode(errors="surrogatepass"), data)
            if isinstance(data, str)
            else (data, data.decode())
        )
        _check_containers(raw)
        return json.loads(text, object_pairs_hook=_table)
    except (ValueError, RecursionError) as failure:
        raise error(f"{where}: is not JSON ({failure}); {remedy}") from failure


def find_object(data: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if the text is torn or is no object."""
    try:
        return parse_object(data, "", "")
    except RecordError:
        return None


def number(value: Any) -> float | None:
    """Return a finite number of a record; None for text, NaN and infinities.

    Example:
        >>> number(2), number("2"), number(float("nan"))
        (2.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < GREATEST_NUMBER else None


def is_count(value: Any) -> bool:
    """Return whether a value of a record is a plausible number of steps or tokens.

    Example:
        >>> is_count(8), is_count(-8), is_count(8.0)
        (True, False, False)
    """
    return type(value) is int and 0 <= value < _GREATEST_COUNT


def as_json(value: Any) -> Any:
    """Return a value as it comes back from JSON: tuples as lists, keys as texts.

    Raises:
        TypeError: JSON cannot hold the value.
        ValueError: The value contains itself.

    Example:
        >>> as_json({1: (2, 3)})
        {'1': [2, 3]}
    """
    return json.loads(json.dumps(value))


def _table(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; refuse a member that comes twice: readers would disagree."""
    table = dict(members)
    if len(table) < len(members):
        ((twice, _),) = Counter(name for name, _ in members).most_common(1)
        raise ValueError(f"an object has the member {twice!r:.100} twice")
    return table


def _check_containers(data: bytes) -> None:
    """Limit the number of lists and objects, and so the memory that parsing needs.

    An empty list has 3 bytes in the file, but needs 64 bytes of memory. A manifest
    needs only 5 bytes of memory for each byte of the file.
    """
    num_containers = data.count(b"{") + data.count(b"[")
    if num_containers > _MOST_CONTAINERS + len(data) // _BYTES_PER_CONTAINER:
        raise ValueError(f"{num_containers} lists and objects in {len(data)} bytes")
