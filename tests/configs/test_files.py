"""Small files are there whole or not at all."""

import threading
from pathlib import Path

from klear.configs.files import replace_text


def test_two_that_write_one_file_at_once_both_succeed_and_leave_one_text_whole(tmp_path: Path):
    path, texts, failed = tmp_path / "plan.txt", ["a" * 5_000, "b" * 5_000], []

    def write(text: str) -> None:
        try:
            for _ in range(200):
                replace_text(path, text)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert path.read_text() in texts
    assert [p.name for p in tmp_path.iterdir()] == ["plan.txt"]
