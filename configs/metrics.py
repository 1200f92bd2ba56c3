"""What the metrics of a run mean: the table `configs/catalogue/metrics.toml`, in its order."""

from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from .settings.base import read_catalogue
from .settings.pipeline import STAGES


class Metric(NamedTuple):
    pattern: str  # A name, in which * stands for anything.
    title: str
    unit: str  # Empty: a pure number.
    about: str


@cache
def metrics() -> tuple[Metric, ...]:
    return tuple(Metric(**row) for row in read_catalogue("metrics")["metric"])


@cache
def metric_of(name: str) -> Metric:
    """The first row that fits a name, in MLflow with its stage before it (`sft/loss`); a row of its
    own where none does."""
    stage, _, curve = name.partition("/")
    name = curve if stage in STAGES else name
    fits = (metric for metric in metrics() if fnmatchcase(name, metric.pattern))
    return next(fits, Metric(name, name, "", ""))


@cache
def display_order(name: str) -> int:
    """Where the row of a name stands; behind the last one where it has none."""
    return [*metrics(), metric_of(name)].index(metric_of(name))
