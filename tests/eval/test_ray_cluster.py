"""What the nodes of a cluster must have in common: all that decides a byte of a result."""

from pathlib import Path

import pytest

from klear.eval import ray_cluster

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements-cpu.lock", "requirements-gpu.lock")


@pytest.mark.parametrize(
    ("name", "decides"),
    [
        ("configs/catalogue/catalogue.toml", True),
        ("configs/accelerate/ddp.yaml", True),
        ("eval/benchmarks/errata.jsonl", True),
        ("tasks/stage/parts.py", True),
        ("configs/profiles/tiny.yaml", False),  # only the machine that asks reads these
        ("tasks/report/templates/page.css", False),
    ],
)
def test_code_its_data_and_packages_are_compared_and_what_only_this_machine_reads_is_not(
    name: str, decides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    for file in (name, *LOCKS):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    monkeypatch.setattr(ray_cluster, "PACKAGE", tmp_path)
    digest = ray_cluster.code_digest.__wrapped__
    before = digest()
    (tmp_path / name).write_text("another")
    assert (digest() != before) == decides
    before = digest()
    monkeypatch.setattr(ray_cluster, "version", lambda name: "0.0.1+cpu")
    other = digest()
    assert other != before
    monkeypatch.setattr(ray_cluster, "version", lambda name: "0.0.1+cu130")  # another build of it
    assert digest() == other
