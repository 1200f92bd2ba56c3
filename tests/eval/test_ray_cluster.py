"""What the nodes of a cluster must have in common: all that decides a byte of a result."""

import ast
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from eval import ray_cluster
from eval.ray_cluster import BUILDS, BYTES_DEPEND_ON, join

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("configs", "eval", "tasks", "training")
DECIDES_NOTHING = {
    "fsspec": "copies files whose digests are known", "gcsfs": "copies them from Google",
    "httpx": "asks Prefect", "prefect": "shows and starts runs", "mlflow": "shows runs",
    "mlflow-skinny": "mlflow's", "mlflow-tracing": "mlflow's",
    "huggingface-hub": "downloads, by the machine that asks",
    "matplotlib": "draws, on the machine that asks", "markdown-it-py": "renders pages there",
    "openai": "asks a teacher, from the machine that asks",
    "requests": "asks servers",
    "psutil": "measures", "pydantic-settings": "reads settings of the machine",
    "ray": "itself refuses a node of another version", "markupsafe": "escapes HTML on pages",
}  # fmt: skip


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """The digest of a small copy of the code, computed anew at each call."""
    for name in (
        "configs/catalogue/catalogue.toml",
        "configs/profiles/tiny.yaml",
        "configs/accelerate/ddp.yaml",
        "eval/benchmarks/errata.jsonl",
        "tasks/report/templates/page.css",
        "tasks/stage/parts.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(ray_cluster, "_ROOT", tmp_path)
    return ray_cluster.code_digest.__wrapped__


def imported() -> set[str]:
    """Every package that the code which runs on nodes imports."""
    owners = packages_distributions()
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    modules = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    modules += [n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module]
    tops = {module.partition(".")[0] for module in modules}
    return {canonicalize_name(d) for top in tops for d in owners.get(top, []) if d != "klear"}


def test_every_package_that_the_code_imports_is_compared_or_decides_nothing() -> None:
    assert imported() - set(BYTES_DEPEND_ON) - set(BUILDS.values()) == (
        imported() & DECIDES_NOTHING.keys()
    )


def test_another_version_of_one_is_other_code(
    digest: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest()
    monkeypatch.setattr(ray_cluster, "_version", lambda name: "0.0.1" if name == "numpy" else "")
    assert digest() != before


def test_the_build_of_a_package_is_not_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "version", {"torch": "2.13.0+cu130"}.__getitem__)
    assert ray_cluster._version("torch") == "2.13.0"


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
def test_code_and_its_data_are_compared_and_what_only_this_machine_reads_is_not(
    name: str, decides: bool, digest: Callable[[], str], tmp_path: Path
) -> None:
    before = digest()
    (tmp_path / name).write_text("another")
    assert (digest() != before) == decides


def test_an_address_that_is_no_node_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="ray start --address=HOST:PORT --num-cpus=0"):
        join("ray://127.0.0.1:10001")


class Silent:
    """A cluster that does not say what is free."""

    def available_resources(self) -> dict[str, float]:
        raise ConnectionError("the head node is away")


def test_a_cluster_that_does_not_say_what_is_free_costs_no_answer() -> None:
    said: list[str] = []
    with ray_cluster.on_cluster_wait(said.append):
        ray_cluster.tell_of_waiting(Silent())
    assert said == []
