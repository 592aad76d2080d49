"""Tests of what is taken for a URL."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from roxxel_store.urls import SCHEMES, UrlError, absolute, check_on_disk, url_of


@pytest.mark.parametrize("path", ["wiki_*.rox", "/data/a?b", Path("s3") / "x", "a:b/c"])
def test_a_path_on_a_disk_is_no_url(path: str | Path) -> None:
    assert url_of(path) is None


def test_a_url_loses_the_slash_at_its_end() -> None:
    assert url_of("s3://bucket/run/") == "s3://bucket/run"


def test_a_path_is_absolute_below_the_home_folder_or_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert absolute("~/wiki/") == f"{tmp_path}/home/wiki/"
    assert absolute(Path("wiki")) == f"{tmp_path}/wiki"


@pytest.mark.parametrize("path", ["gs:/bucket/run", PurePosixPath("gs://bucket/run")])
def test_a_url_that_lost_a_slash_is_refused(path: str | PurePosixPath) -> None:
    with pytest.raises(ValueError, match=r"^init_from='gs:/bucket/run'.*gs://bucket/r"):
        url_of(path, "init_from")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_folder_may_have_the_name_of_a_scheme(scheme: str) -> None:
    check_on_disk(scheme, "copy it to a disk first")

    assert url_of(scheme) is None


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("s3://bucket", "s3://bucket/wiki"),
        ("s3://bucket/a/../b", "s3://bucket/a/../b"),
        ("ftp://host/a", "s3://"),
        ("s3://user:secret@bucket/a", "credentials in the environment"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_the_way_out(
    url: str, named: str
) -> None:
    with pytest.raises(UrlError, match=named) as refused:
        url_of(url)

    assert "secret" not in str(refused.value)
