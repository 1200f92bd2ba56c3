"""TRL's private methods are those that GPPOTrainer was written against."""

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trl.trainer.grpo_trainer import GRPOTrainer

from klear.training.rl.trainer import GPPOTrainer

SIGNATURES = tomllib.loads(Path(__file__).with_name("trl_signatures.toml").read_text())


def signature_of(method: Callable[..., Any]) -> str:
    parameters = inspect.signature(method).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_private_methods_of_trl_are_those_of_the_pinned_version(name):
    assert signature_of(getattr(GRPOTrainer, name)) == SIGNATURES[name], (
        f"GRPOTrainer.{name} changed with this version of trl or transformers. GPPOTrainer "
        "replaces or calls it: read the method, adapt training/rl/trainer.py, then "
        "update trl_signatures.toml."
    )


def test_every_private_method_that_is_replaced_is_pinned():
    own = {n for c in GPPOTrainer.__mro__[:1] for n in vars(c)}
    replaced = {n for n in own if callable(getattr(GRPOTrainer, n, None)) and n != "__init__"}
    assert {n for n in replaced if not n.startswith("__")} <= set(SIGNATURES)
