"""The columns of a log hold what its rows do, whatever the length and the gaps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from roxxel_train.columns import Table


@pytest.mark.parametrize("num_rows", [0, 1, 1024, 1025, 70_000])
def test_each_number_stays_at_its_row(num_rows: int) -> None:
    """A field of every row, one that begins late, one with gaps, a text, and counts."""
    rows: list[dict[str, Any]] = []
    for step in range(num_rows):
        row: dict[str, Any] = {"step": 2 * step, "loss": step / 8, "digest": "00ff"}
        if step >= num_rows // 2:
            row["late"] = -step
        if step % 5:
            row["gap"] = "nan" if step % 7 == 0 else step
        if step % 3:
            row["tokens_by_source"] = {"web": step} | ({"code": 1} if step % 2 else {})
        rows.append(row)
    table = Table()
    for row in rows:
        table.add(row)
    table.close()

    assert len(table) == num_rows
    assert table.steps.tolist() == [row["step"] for row in rows]
    for name in ("loss", "late", "gap"):
        expected = [float(row.get(name, -1)) for row in rows]
        np.testing.assert_array_equal(table.full(name, -1.0), expected)
        steps, values = table.values(name)
        with_it = [row for row in rows if name in row]
        assert steps.tolist() == [row["step"] for row in with_it]
        np.testing.assert_array_equal(values, [float(row[name]) for row in with_it])
    counts = [row.get("tokens_by_source", {}) for row in rows]
    for source in table.sources("tokens_by_source"):
        expected = [each.get(source, math.nan) for each in counts]
        found = table.full_counts("tokens_by_source", source)
        np.testing.assert_array_equal(found, expected)
    counted = [index for index, each in enumerate(counts) if each]
    assert table.counted("tokens_by_source").tolist() == counted
