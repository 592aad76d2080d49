"""The bijection shuffles as well as numpy's own shuffle, over keys and sizes.

Each statistic is a z value: how many standard deviations a count lies from what a
uniformly random permutation gives. Keys are fixed, so a run is the same every time.
"""

# One test reduces the number of rounds.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel_curriculum import make_key
from roxxel_curriculum._order import bijection
from roxxel_curriculum._order.bijection import permute_groups

if TYPE_CHECKING:
    import numpy.typing as npt

    Images = np.ndarray[tuple[int, int], np.dtype[np.int64]]

NUM_KEYS = 3000
LIMIT = 4.0
# Both sides of 48, where ranks end and the network begins, and of powers of two.
SIZES = (3, 4, 5, 16, 31, 47, 48, 49, 50, 63, 64, 65, 100, 127, 128, 129, 256, 509)


def our_images(n: int, keys: npt.NDArray[np.uint64]) -> Images:
    """Return the image of every index under every key, shape `(keys, n)`."""
    index = np.tile(np.arange(n, dtype=np.uint64), keys.size)
    images = permute_groups(index, np.full(keys.size, n), [n] * keys.size, keys)
    return images.reshape(keys.size, n).astype(np.int64)


def numpy_images(n: int) -> Images:
    table = np.tile(np.arange(n), (NUM_KEYS, 1))
    return np.random.default_rng(n).permuted(table, axis=1)


def scattered_keys(n: int) -> npt.NDArray[np.uint64]:
    return np.array([make_key("key", i, n) for i in range(NUM_KEYS)], np.uint64)


def z_of_counts(
    counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64], freedom: int
) -> float:
    """Return chi-square as a normal deviate (Wilson and Hilferty, 1931)."""
    ratio = float(((counts - expected) ** 2 / expected).sum()) / freedom
    spread = 2 / (9 * freedom)
    return (ratio ** (1 / 3) - (1 - spread)) / float(np.sqrt(spread))


def z_of_positions(images: Images) -> float:
    keys, n = len(images), images.shape[1]
    counts = np.bincount((np.arange(n) * n + images).ravel(), minlength=n * n)
    return z_of_counts(counts, np.full(n * n, keys / n), (n - 1) ** 2)


def z_of_gaps(images: Images) -> float:
    n = images.shape[1]
    gaps = (np.diff(images, axis=1) % n).ravel()
    counts = np.bincount(gaps, minlength=n)[1:]
    return z_of_counts(counts, np.full(n - 1, gaps.size / (n - 1)), n - 2)


def z_of_pair(images: Images, other: int) -> float:
    """Return how far the joint images of two indices are from independent ones."""
    keys, n = len(images), images.shape[1]
    bins = min(n, 16)
    of_value = np.arange(n) * bins // n
    cells = of_value[images[:, 0]] * bins + of_value[images[:, other]]
    size = np.bincount(of_value)
    expected = np.outer(size, size).astype(np.float64) - np.diag(size)
    expected = expected.ravel() * (keys / (n * (n - 1)))
    possible = expected > 0
    counts = np.bincount(cells, minlength=bins * bins)[possible]
    return z_of_counts(counts, expected[possible], int(possible.sum()) - 1)


def z_of_orders(images: Images) -> float:
    """Return how far the six orders of three indices are from equally frequent."""
    order = np.argsort(images[:, [0, images.shape[1] // 2, -1]], axis=1)
    counts = np.unique(order[:, 0] * 3 + order[:, 1], return_counts=True)[1]
    return z_of_counts(counts, np.full(6, len(images) / 6), 5)


def z_of_fixed_points(images: Images) -> float:
    keys, n = len(images), images.shape[1]
    return (int((images == np.arange(n)).sum()) - keys) / float(np.sqrt(keys))


def statistics(images: Images) -> dict[str, float]:
    return {
        "position": z_of_positions(images),
        "gap": z_of_gaps(images),
        "neighbours": z_of_pair(images, 1),
        "far pair": z_of_pair(images, images.shape[1] // 2),
        "order of three": z_of_orders(images),
        "fixed points": z_of_fixed_points(images),
    }


@pytest.mark.parametrize("n", SIZES)
def test_it_shuffles_as_numpy_does(n: int) -> None:
    ours = statistics(our_images(n, scattered_keys(n)))
    in_sequence = statistics(our_images(n, np.arange(NUM_KEYS, dtype=np.uint64)))
    reference = statistics(numpy_images(n))

    for name, z in reference.items():
        assert abs(z) < LIMIT, ("numpy", name)
        assert abs(ours[name]) < LIMIT, name
        assert abs(in_sequence[name]) < LIMIT, ("keys 0, 1, 2", name)


def test_the_statistics_would_see_too_few_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bijection, "HALF_ROUNDS", 4)
    monkeypatch.setattr(bijection, "_ROUND_STEPS", bijection._ROUND_STEPS[:4])

    found = statistics(our_images(64, scattered_keys(64)))

    assert max(abs(z) for z in found.values()) > 2 * LIMIT


@pytest.mark.parametrize("n", [1000, 4099, 10**6, 2**20, 2**31 + 11, 10**12])
def test_large_sizes_spread_evenly_and_forget_their_neighbours(n: int) -> None:
    size = min(n, 20_000)
    for salt in range(5):
        image = bijection.permute(np.arange(size), n, make_key("large", n, salt))

        counts = np.bincount(image * 50 // n, minlength=50)
        expected = np.full(50, size / 50)
        # With all of [0, n) the counts are exact; with a part they vary less.
        assert z_of_counts(counts, expected, 49) < LIMIT
        gaps = np.diff(image) % n * 50 // n
        assert (
            abs(
                z_of_counts(
                    np.bincount(gaps, minlength=50), np.full(50, (size - 1) / 50), 49
                )
            )
            < 2 * LIMIT
        )
        correlation = np.corrcoef(image[:-1], image[1:])[0, 1]
        assert abs(correlation) * np.sqrt(size) < LIMIT
