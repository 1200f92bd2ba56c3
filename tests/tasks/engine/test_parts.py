"""Parts come in order and are computed once; their workers never outlive who wants them."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from processes import eventually, output_of

from klear.tasks.engine.parts import computed_parts
from tests.cluster import parts_of_tests as work

ROOT = Path(__file__).parents[3]


def test_a_worker_that_dies_is_an_error_with_advice(tmp_path):
    with pytest.raises(RuntimeError, match="fewer workers or smaller parts"):
        list(computed_parts(tmp_path / "parts", [0, 1], work.die_at_zero, workers=2))


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """Where hanging workers say who they are."""
    folder = tmp_path / "names"
    folder.mkdir()
    return folder


def left(names: Path) -> list[str]:
    """The workers that are still there, ended ones that nobody buried among them."""
    return [p.name for p in names.iterdir() if Path("/proc", p.name).exists()]


def test_workers_end_with_the_process_that_started_them(tmp_path, names):
    (tmp_path / "slow.py").write_text(
        textwrap.dedent(f"""
        import sys
        from pathlib import Path
        sys.path[:0] = {[str(ROOT / ".package"), str(ROOT)]!r}
        from klear.tasks.engine.parts import computed_parts
        from tests.cluster.parts_of_tests import hang

        if __name__ == "__main__":
            names = Path({str(names)!r})
            list(computed_parts(names.parent / "parts", [str(names)] * 2, hang, workers=2))
        """)
    )
    parent = subprocess.Popen([sys.executable, str(tmp_path / "slow.py")])
    assert eventually(lambda: len(list(names.iterdir())) == 2, 120)
    parent.kill()
    parent.wait()
    assert eventually(lambda: not left(names), 120)


def test_modules_of_the_folder_one_works_in_are_not_taken_for_ours(tmp_path):
    for name in ("klear/tasks/__init__.py", "numba.py", "socket.py", "run/main.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise OSError('not what was wanted')")
    (tmp_path / "run" / "main.py").write_text(
        textwrap.dedent(f"""
        import sys
        sys.path[0] = {str(ROOT / ".package")!r}
        from klear.tasks.data.near_duplicates import folded
        from klear.tasks.engine.parts import worker_pool
        if __name__ == "__main__":
            with worker_pool(1) as pool:
                print(pool.submit(folded, ["A b"]).result()[0].as_py())
        """)
    )
    assert output_of(sys.executable, "run/main.py", cwd=tmp_path) == "b'a b'\n"
