"""The command `klear`. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.

Each command imports what it needs when it runs, so that `klear --help` is instant.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from configs.stage_names import STAGES

Command = Callable[[argparse.Namespace], int]
OK, FAILED, WRONG_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run one command; expected failures are lines on stderr, never tracebacks."""
    arguments = _parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
    command: Command = arguments.command
    try:
        return command(arguments)
    except KeyboardInterrupt:
        print("interrupted; the same command continues from here", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        code = _expected(error)
        if code is None:
            raise
        print(error, file=sys.stderr)
        return code


def _expected(error: Exception) -> int | None:
    """The exit code of an error whose message is for the user; None for one of ours."""
    from configs.explain import ConfigError
    from eval.sandbox_errors import SandboxUnavailable
    from flows.servers import ServersError

    if isinstance(error, ConfigError):
        return WRONG_USAGE
    return FAILED if isinstance(error, (ServersError, SandboxUnavailable, OSError)) else None


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="klear", description="From a base model to a reasoning model, every stage restartable."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        return sub

    add("up", _up, "start Prefect, MLflow and a worker on this machine")
    add("down", _down, "end what `klear up` started")
    _add_run(add("run", _run, "run a profile; finished stages are reused"))
    add("status", _status, "servers, latest runs and finished stages")
    add("doctor", _doctor, "check versions, sandbox, ports, disk, memory and GPU")
    _add_judge(add("judge", _judge, "judge answers from stdin, one JSON line each"))
    decontaminate = add(
        "decontaminate", _decontaminate, "remove problems that share n-grams with benchmarks"
    )
    if argv[:1] == ["decontaminate"]:  # its options live beside its code, which loads pyarrow
        from flows import decontaminate_command

        decontaminate_command.add_arguments(decontaminate)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", help="tiny, single_gpu, paper, … or the path of a .yaml file")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="change one setting: --set sft.epochs=2, --set data.root=FOLDER (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--force", action="append", default=[], metavar="STAGE",
        help="recompute this stage even if its result is in the store (repeatable)",
    )  # fmt: skip
    parser.add_argument("--until", default=STAGES[-1], metavar="STAGE", help="stop after STAGE")
    parser.add_argument("--seed", type=int, help="seed of every random stage")


def _add_judge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stream", action="store_true", required=True,
        help='{"problem": …, "text": …} lines in, one score line out for each, in order',
    )  # fmt: skip
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="change a judge setting: --set max_tests=8 (repeatable)",
    )  # fmt: skip
    parser.add_argument("--sandbox", help="short for --set sandbox=…")
    parser.add_argument("--workers", type=int, help="judge workers (0: one per core)")


def _up(_: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows.servers import up

    up(load_machine())
    return OK


def _down(_: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows.servers import down

    down(load_machine())
    return OK


def _status(_: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows.status import print_status

    print_status(load_machine())
    return OK


def _doctor(_: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows.doctor import doctor

    return doctor(load_machine())


def _run(arguments: argparse.Namespace) -> int:
    from configs.explain import ConfigError
    from configs.load import load_profile
    from configs.machine import load_machine
    from flows.servers import ServersError, are_up

    machine = load_machine()
    seed = [] if arguments.seed is None else [f"seed={arguments.seed}"]
    problems = [*_unknown_stages("--force", arguments.force)]
    problems += _unknown_stages("--until", [arguments.until])
    try:
        settings = load_profile(arguments.profile, [*arguments.overrides, *seed])
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    for stage in sorted(settings.stages_left_out & {*arguments.force, arguments.until}):
        problems.append(f"{stage} is no stage of the profile {settings.profile}")
    if problems:
        raise ConfigError(problems)
    if not are_up(machine):
        raise ServersError("the servers are not up: run `klear up` first")
    os.environ.update(machine.environment())  # before Prefect and MLflow are imported
    # The display says it all in one line a stage; Prefect's page of the run keeps every log line.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    from flows.run import run_pipeline

    return run_pipeline(settings, arguments.force, arguments.until)


def _unknown_stages(option: str, names: Sequence[str]) -> list[str]:
    from configs.explain import nearest

    return [
        f"{option} {name}: no such stage{nearest(name, STAGES)}"
        for name in names
        if name not in STAGES
    ]


def _judge(arguments: argparse.Namespace) -> int:
    from configs.judging import JudgeSettings
    from configs.load import load_group

    overrides = list(arguments.overrides)
    if arguments.sandbox is not None:
        overrides.append(f"sandbox={arguments.sandbox}")
    if arguments.workers is not None:
        overrides.append(f"runtime.workers={arguments.workers}")
    settings = load_group(JudgeSettings, overrides)
    from eval.stream import run_stream

    return run_stream(sys.stdin, sys.stdout, settings) or OK


def _decontaminate(arguments: argparse.Namespace) -> int:
    from flows import decontaminate_command

    return decontaminate_command.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
