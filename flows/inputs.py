"""The inputs of a stage that runs alone: `latest`, `profile`, or the key or digest of a result."""

from collections.abc import Mapping

from configs.explain import ConfigError
from configs.settings import Pipeline
from flows.plan import plan
from tasks.shared_results import results
from tasks.store import Artifact, Store

LATEST, PROFILE = "latest", "profile"
PATTERN = f"^({LATEST}|{PROFILE}|[0-9a-f]{{6,64}})$"


def chosen_inputs(
    wanted: Mapping[str, str], store: Store, profile: Pipeline
) -> dict[str, Artifact]:
    """The results that `wanted` (stage → which) names, in its order.

    `latest` is the newest result of the stage in the store, also of a shared one, whoever made it
    and wherever; `profile` the one
    that a whole run of the profile would use; else the first digits of a key or content digest.

    Raises ConfigError with one line for every input that is not there.
    """
    of_profile: dict[str, str] = {}
    if PROFILE in wanted.values():
        of_profile = {s.stage: s.key for s in plan(profile, store) if s.action == "reuse"}
    found: dict[str, Artifact] = {}
    problems: list[str] = []
    for stage, which in wanted.items():
        try:
            found[stage] = _find(stage, which, store, of_profile.get(stage))
        except LookupError as error:
            problems.append(f"inputs.{stage}: {error.args[0]}")
    if problems:
        raise ConfigError(problems)
    return found


def _find(stage: str, which: str, store: Store, of_profile: str | None) -> Artifact:
    if which == PROFILE:
        if of_profile is None:
            raise LookupError(f"the profile's {stage} is not computed; run it, or choose {LATEST}")
        return _usable(stage, of_profile, store)
    there = [result.manifest for result in reversed(results(store, stage))]
    if which == LATEST:
        if not there:
            raise LookupError(f"the store has no result of {stage}; run it first")
        return _usable(stage, there[0].key, store)
    keys = {path.name for path in (store.root / stage).glob(f"{which}*")}
    keys |= {m.key for m in there if m.digest.startswith(which) or m.key.startswith(which)}
    if len(keys) > 1:
        raise LookupError(f"{which} is the beginning of several: {', '.join(sorted(keys))}")
    return _usable(stage, keys.pop() if keys else which, store)


def _usable(stage: str, key: str, store: Store) -> Artifact:
    artifact, damage = store.find(stage, key)
    if artifact is None:
        raise LookupError(
            f"{damage or f'there is no {stage}/{key}'}; `klear store ls` says what there is"
        )
    return artifact
