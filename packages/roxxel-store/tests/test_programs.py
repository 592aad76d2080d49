from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.programs import program

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_ctrl_c_while_a_program_is_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_tool").mkdir()
    (tmp_path / "slow_tool" / "__init__.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert program("slow-tool")() == 130
    assert capsys.readouterr().err == "slow-tool: interrupted\n"
