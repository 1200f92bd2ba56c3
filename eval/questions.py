"""What a benchmark asks: the problem, and how to answer it so that the answer can be found."""

from configs.evaluate_stage import BenchmarkProtocol
from eval.records import Problem

MATH = "Please reason step by step, and put your final answer within \\boxed{}."
STDIN = (
    "Write a Python program that reads its input from standard input and prints the answer to "
    "standard output. Put the whole program into one ```python block."
)
CALL = "Write Python code that defines {name}. Put all of it into one ```python block."


def question(protocol: BenchmarkProtocol, problem: Problem) -> str:
    """The text a model gets: `protocol.question` with {prompt} and {format} filled in."""
    text = protocol.question.replace("{format}", answer_format(problem))
    return text.replace("{prompt}", problem.prompt)


def answer_format(problem: Problem) -> str:
    """How the judge wants the answer to this problem."""
    if problem.domain == "math":
        return MATH
    suite = problem.tests
    if suite is None or suite.kind in ("stdin", "checker"):
        return STDIN
    name = f"`{suite.fn_name}`" if suite.fn_name else "the function"
    if suite.kind == "call":
        name = f"`class Solution` with the method {name}"
    return CALL.replace("{name}", name)
