"""`klear sandbox check`: does this machine isolate programs, and which backends would?

Exit codes: 0 the chosen backend isolates, 1 it does not, 2 wrong usage.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klear sandbox`."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="run the self-test of every backend")
    check.add_argument("--sandbox", help="the backend that must work (default: that of judging)")


def run(arguments: argparse.Namespace) -> int:
    """Raises ConfigError for a backend that does not exist."""
    from configs.judging import JudgeSettings
    from configs.load import load_group
    from eval.sandbox_check import check_sandboxes

    chosen = [] if arguments.sandbox is None else [f"sandbox={arguments.sandbox}"]
    text, status = check_sandboxes(load_group(JudgeSettings, chosen).sandbox)
    print(text)
    return status
