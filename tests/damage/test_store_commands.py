"""`klear store verify` and `gc` on a damaged store: every damage is named, nothing is lost."""

from pathlib import Path

import pytest
from damage.three_stages import run_all

from klear.flows.cli.main import main
from klear.tasks.store.lineage import ancestors, results
from klear.tasks.store.store import MANIFEST, Store


@pytest.fixture
def home(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KLEAR_HOME", str(store.parent))
    return store


@pytest.mark.parametrize("left", [None, "", "{}", '{"format": 2}'])
def test_verify_names_a_result_without_a_readable_manifest(home: Path, capsys, left) -> None:
    (manifest,) = home.glob(f"sft/*/{MANIFEST}")
    manifest.unlink() if left is None else manifest.write_text(left)
    assert main(["store", "verify"]) == 1
    said = capsys.readouterr().out
    assert f"damaged: sft/{manifest.parent.name} has " in said
    assert "3 results read, 1 damaged" in said


def test_gc_keeps_what_a_damaged_result_may_need(home: Path, capsys) -> None:
    """The report needs `sft`, and only the manifest of `sft` says that `sft` needs `collect`."""
    (manifest,) = home.glob(f"sft/*/{MANIFEST}")
    manifest.write_text("{")
    assert main(["store", "gc", "--days", "0", "--yes"]) == 0
    assert f"sft/{manifest.parent.name} cannot be read: results are kept" in capsys.readouterr().out
    assert len(list(home.glob(f"[!.]*/*/{MANIFEST}"))) == 3
    assert run_all(home).outcome == {"collect": "cached", "sft": "computed", "report": "cached"}


def test_lineage_ends_where_a_manifest_is_damaged(home: Path) -> None:
    last = next(p for p in results(Store(home)) if p.stage == "report")
    assert [m.stage for m in ancestors(Store(home), last)] == ["collect", "sft"]
    for manifest in home.glob(f"collect/*/{MANIFEST}"):
        manifest.write_text("{")
    assert [m.stage for m in ancestors(Store(home), last)] == ["sft"]
