"""What somebody asks for: a profile with changes, beside what it says without them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ..configs.loading import Profile, differences, run_name
from ..configs.settings.explain import ConfigError
from ..configs.settings.pipeline import Pipeline

NO_FILE = Profile({})


@dataclass(frozen=True)
class Request:
    """A pipeline, and its profile unchanged."""

    settings: Pipeline
    profile: Pipeline
    file: Profile = NO_FILE
    overrides: tuple[str, ...] = ()

    @classmethod
    def from_profile(cls, profile: Profile, overrides: Sequence[str]) -> Self:
        """Raises ConfigError with all that is wrong."""
        return cls(profile.pipeline(overrides), profile.pipeline(), profile, tuple(overrides))

    def refuse_left_out(self, *stages: str) -> None:
        """Raise ConfigError for a stage that the profile does not have."""
        if left_out := sorted(self.settings.stages_left_out & {*stages}):
            wrong = f"is no stage of the profile {self.settings.profile}"
            raise ConfigError(f"{stage} {wrong}" for stage in left_out)

    @property
    def name(self) -> str:
        """`sft.learning_rate=1e-4 · tiny-seed0`."""
        return run_name(self.settings, self.profile)

    @property
    def changed(self) -> tuple[tuple[str, str], ...]:
        """Dotted names and new values of what differs from the profile."""
        return tuple(differences(self.settings, self.profile))
