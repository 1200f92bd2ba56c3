"""The inputs of a stage that runs alone: `latest`, `profile`, or the key or digest of a result."""

from collections.abc import Mapping

from configs.settings.explain import ConfigError
from configs.settings.pipeline import Pipeline
from flows.cli.plan import plan
from tasks.store.care import results
from tasks.store.store import Artifact, Store

LATEST, PROFILE = "latest", "profile"
PATTERN = f"^({LATEST}|{PROFILE}|[0-9a-f]{{6,64}})$"


def chosen_inputs(
    wanted: Mapping[str, str], store: Store, profile: Pipeline
) -> dict[str, Artifact]:
    """The results that `wanted` (stage → which) names, in its order.

    `latest` is the newest result of the stage in the store, also of a shared one, whoever made it
    and wherever; `profile` the one that a whole run of the profile would use; else the first
    digits of a key or content digest.

    Raises ConfigError with one line for every input that is not there.
    """
    of_profile: dict[str, str] = {}
    if PROFILE in wanted.values():
        of_profile = {s.stage: s.key for s in plan(profile, store) if s.action == "reuse"}
    found: dict[str, Artifact] = {}
    problems: list[str] = []
    for stage, which in wanted.items():
        try:
            key = of_profile.get(stage, "") if which == PROFILE else _key(stage, which, store)
            artifact, damage = store.find(stage, key) if key else (None, "")
        except LookupError as error:
            problems.append(f"inputs.{stage}: {error.args[0]}")
            continue
        if artifact is not None:
            found[stage] = artifact
        elif key:
            why = damage or f"there is no {stage}/{key}"
            problems.append(f"inputs.{stage}: {why}; `klear store ls` says what there is")
        else:
            what = (
                f"the profile's {stage} is not computed"
                if which == PROFILE
                else (f"the store has no result of {stage}")
            )
            problems.append(f"inputs.{stage}: {what}; run it first")
    if problems:
        raise ConfigError(problems)
    return found


def _key(stage: str, which: str, store: Store) -> str:
    """The key that `latest` or some digits name; '' for the latest of none."""
    there = [result.manifest for result in reversed(results(store, stage))]
    if which == LATEST:
        return there[0].key if there else ""
    keys = {path.name for path in (store.root / stage).glob(f"{which}*")}
    keys |= {m.key for m in there if m.digest.startswith(which) or m.key.startswith(which)}
    if len(keys) > 1:
        raise LookupError(f"{which} is the beginning of several: {', '.join(sorted(keys))}")
    return keys.pop() if keys else which
