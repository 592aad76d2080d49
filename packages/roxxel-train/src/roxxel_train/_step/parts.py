"""Deals the rows of a batch to the parts of a step with gradient accumulation.

A group is `num_parts` consecutive rows of the batch, and gives one row to each part. So
a part has rows on all devices, and no row moves between devices. But the sources of a
blend follow a pattern: with two sources of equal weight, the rows belong to the first
and the second source in turn. If a part took the same row of every group, all its rows
could be of one source.

A piece is `num_parts` successive rows of one source. Groups and pieces are the vertices
of a bipartite graph. A row is an edge between its group and its piece, and a part is a
colour that occurs at most once at each vertex. Such an edge colouring always exists (D.
König, Über Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre, 1916).
So the rows of every source are spread as evenly as whole rows can be, and the parts are
the same for any number of devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt


def deal_rows(source: npt.NDArray[np.integer], num_parts: int) -> npt.NDArray[np.int32]:
    """Return which row of each group every part holds.

    Args:
        source: Source of each row of a batch, shape `(B,)`.
        num_parts: Parts of the batch; divides `B`.

    Returns:
        Shape `(B,)`. Part `k` holds row `num_parts * g + order[num_parts * g + k]` for
        every group `g`. Of the `n` rows of a source, every part holds `n / num_parts`,
        rounded up or down.
    """
    if (source == source[0]).all():
        return np.tile(np.arange(num_parts, dtype=np.int32), len(source) // num_parts)
    colours = _colours(_pieces(source.tolist(), num_parts), num_parts)
    return np.asarray(colours).reshape(-1, num_parts).argsort().ravel().astype(np.int32)


def _pieces(source: Sequence[int], num_parts: int) -> list[int]:
    """Return the piece of each row; a piece is `num_parts` rows of one source."""
    pieces: list[int] = []
    num_pieces = 0
    current: dict[int, tuple[int, int]] = {}  # by source: piece, rows to come
    for name in source:
        piece, room = current.get(name, (0, 0))
        if not room:
            piece, room = num_pieces, num_parts
            num_pieces += 1
        current[name] = piece, room - 1
        pieces.append(piece)
    return pieces


def _colours(pieces: Sequence[int], num_colours: int) -> list[int]:
    """Return a colour for each row, different within each group and each piece."""
    colours = [0] * len(pieces)
    # A set of colours is an integer: bit c is set if the set contains colour c.
    every = (1 << num_colours) - 1
    free_in_group = [every] * (len(pieces) // num_colours)
    free_in_piece = [every] * (max(pieces) + 1)
    row_in_group = [0] * len(pieces)  # by group and colour
    row_in_piece = [0] * (len(free_in_piece) * num_colours)

    def add(row: int, colour: int) -> None:
        group, piece = row // num_colours, pieces[row]
        colours[row] = colour
        free_in_group[group] &= ~(1 << colour)
        free_in_piece[piece] &= ~(1 << colour)
        row_in_group[group * num_colours + colour] = row
        row_in_piece[piece * num_colours + colour] = row

    def path(piece: int, colour: int, other: int) -> Iterator[int]:
        while not free_in_piece[piece] >> colour & 1:
            row = row_in_piece[piece * num_colours + colour]
            yield row
            group = row // num_colours
            if free_in_group[group] >> other & 1:
                return
            row = row_in_group[group * num_colours + other]
            yield row
            piece = pieces[row]

    for row, piece in enumerate(pieces):
        here, there = free_in_group[row // num_colours], free_in_piece[piece]
        if here & there:
            add(row, _lowest(here & there))
            continue
        # No colour is free in both: `colour` is free in the group, and `other` in the
        # piece. From the piece, follow rows of `colour` and `other` in turn, and swap
        # the two colours on this path. Then `colour` is free in the piece. It stays
        # free in the group of the new row too: the path enters each group by a row of
        # `colour`, so it cannot enter this group, which has no such row.
        colour, other = _lowest(here), _lowest(there)
        rows = list(path(piece, colour, other))
        for swapped in rows:
            free_in_group[swapped // num_colours] |= 1 << colours[swapped]
            free_in_piece[pieces[swapped]] |= 1 << colours[swapped]
        for swapped in rows:
            add(swapped, colour + other - colours[swapped])
        add(row, colour)
    return colours


def _lowest(colours: int) -> int:
    """Return the lowest colour of a set that is not empty."""
    return (colours & -colours).bit_length() - 1
