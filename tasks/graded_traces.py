"""A graded answer as a trace: asked, written, judged, and every check of the judge."""

from eval.graded import Check, Graded
from tasks.store import Artifact
from tasks.tracked import Span, Trace


def trace_of(graded: Graded, artifact: Artifact, time: float) -> Trace:
    """One trace; the same answer of the same artifact always has the same key."""
    step = "" if graded.step is None else f"step {graded.step}, "
    grade = {
        "verdict": graded.verdict,
        "reward": graded.reward,
        "pass_rate": graded.pass_rate,
        "reason": graded.reason,
    }
    judged = {"answer": graded.answer, "checks in all": graded.checks_in_all}
    wrong = graded.correct is False
    return Trace(
        key=f"{artifact.digest}/{graded.step}/{graded.problem_id}/{graded.index}",
        time=time,
        request=graded.prompt,
        response=f"{graded.verdict}, reward {graded.reward}: {graded.answer or graded.text[-200:]}",
        spans=[
            Span("graded answer", "CHAIN", {"prompt": graded.prompt},
                 {"answer": graded.answer, **grade}),
            Span("write", "LLM", {"prompt": graded.prompt}, {"text": graded.text}),
            Span("judge", "EVALUATOR", judged, grade, is_error=wrong),
            *map(_check, graded.checks),
        ],
        tags={
            "mlflow.traceName": f"{artifact.stage}: {step}{graded.problem_id} #{graded.index}",
            "klear.stage": artifact.stage,
            "klear.problem": graded.problem_id,
            "klear.verdict": graded.verdict,
            "klear.reward": "" if graded.reward is None else f"{graded.reward:g}",
        },
    )  # fmt: skip


def _check(check: Check) -> Span:
    return Span(
        check.name,
        "EVALUATOR",
        {"input": check.input, "expected": check.expected},
        {"verdict": check.verdict, "reason": check.reason},
        is_error=check.verdict != "AC",
    )
