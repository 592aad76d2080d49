from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from roxxel_format.testing import documents, write_shards

if TYPE_CHECKING:
    import pytest


@given(data=documents(vocab_size=50, max_length=20_000))
def test_documents_make_corpora_of_several_shards(
    data: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    corpus = write_shards(tmp_path_factory.mktemp("corpus"), data, separator=49)

    for ours, theirs in zip(corpus.documents, data, strict=True):
        assert np.array_equal(ours, theirs)
    assert corpus.token_range_seen is not None
    assert corpus.token_range_seen[1] == 49
    assert corpus.dtype == np.uint16
