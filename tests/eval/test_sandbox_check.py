"""`klear sandbox check` says what works here, and fails when the chosen backend does not."""

from eval import sandbox_check
from eval.sandbox_check import BACKENDS, check_sandboxes
from eval.sandbox_errors import SandboxUnavailable


def test_each_backend_gets_a_line_and_the_chosen_one_decides(monkeypatch):
    text, status = check_sandboxes("bubblewrap")
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[: len(BACKENDS)]] == list(BACKENDS)
    assert lines[0].split()[1] == "ok"
    assert (lines[-1], status) == ("judge.sandbox=bubblewrap: programs are isolated", 0)

    def sings(sandbox: object) -> None:
        raise SandboxUnavailable("a program could reach the network")

    monkeypatch.setattr(sandbox_check, "assert_isolated", sings)
    text, status = check_sandboxes("bubblewrap")
    assert "FAIL  a program could reach the network" in text
    assert (text.splitlines()[-1], status) == ("judge.sandbox=bubblewrap: refused", 1)


def test_no_sandbox_is_allowed_and_named(monkeypatch):
    monkeypatch.setattr(sandbox_check, "_check", lambda backend: (False, "not here"))
    text, status = check_sandboxes("none")
    assert "every score says so" in text
    assert status == 0
