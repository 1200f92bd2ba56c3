"""RESULTS.md: every claim of the paper's analysis with its figures, ours and a verdict; RESULTS.svg
draws them.

RESULTS.jsonl beside it is what the page is made of, so that results of several stores meet on it,
and stay where a store is gone. The verdict of a claim is that of its contrasts where they agree and
a count of them where they do not. Experiments of one claim (math and code sources) make one row.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, ValidationError

from ...configs.ablation import Ablation
from ...configs.files import replace_text
from ...eval.records import Record
from ..report.page import Page, render
from ..report.plots import Effect, forest_plot
from ..store.lineage import ancestors, results
from ..store.store import Store
from .ablate import NO_INTERVAL, RESULTS, Compared, ExperimentOutcome, ablate, compared

VERDICTS = ("confirmed", "reversed", "not seen", NO_INTERVAL)


class Finished(Record):
    """The result of one experiment at one scale: a line of RESULTS.jsonl."""

    experiment: dict[str, Any] = Field(validation_alias=AliasChoices("experiment", "asked"))
    """What decides whether it is still the same: `identity_of` it. Older files call it `asked`."""
    outcome: ExperimentOutcome
    grader: int
    """Version of the judge behind all scores and rewards (`GRADER_VERSION`)."""
    created: str
    commit: str


def identity_of(spec: Ablation, profile: str) -> dict[str, Any]:
    """Arms, contrasts, checkpoint, benchmarks and settings: what the experiment's file asks.

    Not the paper's sentences, nor which contrasts the claim rests on, for no figure changes with
    them. An outcome depends on more: on the profile and the code, which `Finished.commit` names.
    """
    contrasts = {"__all__": {"better", "than", "measure"}}
    fields = {"name": True, "arms": True, "scored": True, "contrasts": contrasts}
    scale = spec.scale(profile).model_dump(mode="json", exclude={"evidence"})
    seeds = {n: v for n in ("first_seed", "starts") if (v := getattr(spec, n))}  # not how many
    identity = spec.model_dump(mode="json", include=fields)
    return {"profile": profile, **identity, **seeds, "scale": scale}


def finished_in(store: Store, spec: Ablation, profile: str) -> list[Finished]:
    """The results of this store that answer what the experiment's file asks now.

    A result counts only if it is whole and made by today's rules. `klear ablate` makes others anew
    from the runs they were made of.
    """
    finished, experiment = list[Finished](), identity_of(spec, profile)
    for manifest in results(store, spec.stage):
        artifact, _ = store.find(manifest.stage, manifest.key)
        if artifact is None or manifest.version != ablate.version:
            continue
        store.fetch(artifact)
        with suppress(ValidationError):  # of an older commit
            before = Ablation.model_validate(manifest.settings["ablation"])
            outcome = ExperimentOutcome.model_validate_json(artifact.file(RESULTS).read_bytes())
            if identity_of(before, str(manifest.settings["profile"])) == experiment:
                judges = (m.version for m in ancestors(store, manifest) if m.stage == "judge")
                fields = {"experiment": experiment, "outcome": outcome}
                fields |= {"created": manifest.created, "commit": manifest.git_commit}
                finished.append(Finished(**fields, grader=max(judges, default=0)))
    return finished


def best(finished: Iterable[Finished]) -> list[Finished]:
    """Of each experiment the result with the most seeds, newest grader, latest date; by name."""
    kept: dict[str, Finished] = {}
    for one in sorted(finished, key=lambda f: (f.outcome.seeds, f.grader, f.created)):
        kept[json.dumps(one.experiment, sort_keys=True)] = one
    names = itemgetter("profile", "name")
    return sorted(kept.values(), key=lambda f: (names(f.experiment), f.created))


def write_results(store: Store, page: Path, profile: str, specs: Sequence[Ablation]) -> int:
    """Write the page and the lines beside it; returns how many experiments have run."""
    lines, picture = page.with_suffix(".jsonl"), page.with_suffix(".svg")
    here = [f for spec in specs for f in finished_in(store, spec, profile)]
    finished = best([*here, *read_finished(lines)])
    page.write_text(results_page(profile, specs, finished).markdown(), encoding="utf-8")
    picture.write_text(results_plot(profile, specs, finished), encoding="utf-8")
    replace_text(lines, "".join(f"{f.model_dump_json()}\n" for f in finished))
    return sum(_result_of(spec, profile, finished) is not None for spec in specs)


def _result_of(spec: Ablation, profile: str, finished: Iterable[Finished]) -> Finished | None:
    return next((f for f in finished if f.experiment == identity_of(spec, profile)), None)


def read_finished(path: Path) -> list[Finished]:
    """What an earlier page was made of; nothing if there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Finished.model_validate_json(line) for line in lines]


def results_page(profile: str, specs: Sequence[Ablation], finished: Sequence[Finished]) -> Page:
    """The table of claims, then every experiment with its command, scores and effects."""
    experiments = []
    for spec in specs:
        result = _result_of(spec, profile, finished)
        experiments.append((spec, result, compared(spec, result and result.outcome, profile)))
    claims = claim_rows([row for *_, rows in experiments for row in rows], profile)
    body = render("ablations.md", profile=profile, claims=claims, experiments=experiments)
    subtitle = "Tables 2 to 6 and Figures 2 to 5 of Klear-Reasoner (arXiv 2508.07629), repeated"
    return Page("Results of the ablations", subtitle, f"{profile} profile", body)


def results_plot(profile: str, specs: Sequence[Ablation], finished: Sequence[Finished]) -> str:
    """A forest plot of every contrast that a claim rests on, on the benchmark that decides; SVG."""
    effects = []
    for spec in specs:
        result = _result_of(spec, profile, finished)
        for row in compared(spec, result and result.outcome, profile):
            decides = row.benchmark == spec.scale(profile).benchmarks[0]
            if row.contrast.part_of_claim and decides and (f := row.finding):
                label = f"{row.contrast.against(row.other)} · {f.seeds} seeds"
                papers = tuple(row.papers_points.values())
                measured = (f.points, f.low, f.high, f.verdict, papers)
                effects.append(Effect(spec.shows, label, *measured))
    return forest_plot(effects)


def claim_rows(rows: Iterable[Compared], profile: str) -> list[tuple[str, ...]]:
    """One row a claim, in the order in which they first come: what shows it, the claim, the
    paper's points, ours, seeds, what they could have seen, the verdict. The first benchmark
    decides; a claim needs all of its contrasts, so the one that sees least counts."""
    claims: dict[str, list[Compared]] = {}
    for row in rows:
        if row.contrast.part_of_claim and row.benchmark == row.spec.scale(profile).benchmarks[0]:
            claims.setdefault(row.spec.claim, []).append(row)
    return [_row(claim, rows) for claim, rows in claims.items()]


def _row(claim: str, rows: Sequence[Compared]) -> tuple[str, ...]:
    findings = [row.finding for row in rows if row.finding]
    in_reach = [points for f in findings if (points := f.could_see) is not None]
    return (
        " and ".join(dict.fromkeys(row.spec.shows for row in rows)),
        claim,
        _by_contrast(rows, lambda row: row.papers),
        _by_contrast(
            rows, lambda row: f"{f.points:+.1f} ± {f.half:.1f}" if (f := row.finding) else "–"
        ),
        " or ".join(sorted({str(f.seeds) for f in findings})) or "–",
        f"±{max(in_reach):.1f}" if in_reach and len(in_reach) == len(findings) else "–",
        _verdict(rows),
    )


def _verdict(rows: Iterable[Compared]) -> str:
    """`confirmed`, if all contrasts are; `1 reversed, 1 not seen`, if they differ."""
    counts = Counter(row.verdict for row in rows)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])


def _by_contrast(rows: Sequence[Compared], describe: Callable[[Compared], str]) -> str:
    """What is said of each contrast, named where it differs between them. With its experiment,
    where there are several: arms of two tables have the same names."""
    texts = [describe(row) for row in rows]
    if len(set(texts)) == 1:
        return texts[0]
    several = len({row.spec.shows for row in rows}) > 1
    return "; ".join(
        f"{row.spec.shows + ': ' if several else ''}{row.contrast.against(row.other)} {text}"
        for row, text in zip(rows, texts, strict=True)
    )
