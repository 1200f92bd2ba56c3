"""The command `klear`. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.

Each command imports what it needs when it runs, so that `klear --help` is instant.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from configs.stage_names import STAGES

if TYPE_CHECKING:
    from configs.settings import Pipeline

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
    if isinstance(error, (ServersError, SandboxUnavailable, OSError)):
        return FAILED
    # Whoever can raise it has imported it; all other commands do without its libraries.
    stores = sys.modules.get("tasks.object_store")
    return FAILED if stores and isinstance(error, stores.StoreUnreachable) else None


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
    serve = add("serve", _serve, "one server or the worker in the foreground, for containers")
    if argv[:1] == ["serve"]:
        from flows import serve_command

        serve_command.add_arguments(serve)
    run = add("run", _run, "run a profile; finished stages are reused")
    _add_run(run)
    run.add_argument(
        "--verify", action="store_true",
        help="reuse a result only if every byte is what was published (reads the whole store)",
    )  # fmt: skip
    _add_run(add("plan", _plan, "what a run would reuse, resume and compute, and why"))
    add("status", _status, "servers, latest runs and finished stages")
    lineage = add("lineage", _lineage, "the chain behind a score, a checkpoint or any result")
    lineage.add_argument(
        "result", metavar="SCORE|CHECKPOINT|ARTIFACT",
        help="rl_code/aime24, 56.5, sft, stage/key, a digest, a path, an MLflow run or model",
    )  # fmt: skip
    store = add("store", _store, "list, measure, verify and clean the store")
    if argv[:1] == ["store"]:
        from flows import store_command

        store_command.add_arguments(store)
    add("doctor", _doctor, "check versions, sandbox, ports, disk, memory and GPU")
    from flows import judge_command

    judge_command.add_arguments(add("judge", judge_command.run, "judge answers to problems"))
    from flows import sandbox_command

    sandbox_command.add_arguments(
        add("sandbox", sandbox_command.run, "check: does this machine isolate programs?")
    )
    decontaminate = add(
        "decontaminate", _decontaminate, "remove problems that share n-grams with benchmarks"
    )
    if argv[:1] == ["decontaminate"]:  # its options live beside its code, which loads pyarrow
        from flows import decontaminate_command

        decontaminate_command.add_arguments(decontaminate)
    from flows import ablate_command

    ablate_command.add_arguments(
        add("ablate", ablate_command.run, "repeat a table or figure of the paper, with intervals")
    )
    from flows import eval_command

    eval_command.add_arguments(add("eval", eval_command.run, "score any model on benchmarks"))
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
    parser.add_argument(
        "--approve-cost", type=_amount, metavar="AMOUNT",
        help="what a stage that asks a paid engine may spend (engine.runtime.approve_above)",
    )  # fmt: skip


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount, zero or more")
    return amount


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


def _serve(arguments: argparse.Namespace) -> int:
    from flows import serve_command

    return serve_command.run(arguments)


def _status(_: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows.status import print_status

    print_status(load_machine())
    return OK


def _store(arguments: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows import store_command
    from tasks.shared_store import open_store

    return store_command.run(open_store(load_machine()), arguments)


def _lineage(arguments: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows.lineage_command import print_lineage
    from tasks.shared_store import open_store

    return print_lineage(open_store(load_machine()), arguments.result)


def _doctor(_: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows.doctor import doctor

    return doctor(load_machine())


def _pipeline_of(arguments: argparse.Namespace) -> "Pipeline":
    """The profile with its overrides; every wrong option is one line of the same error."""
    from configs.explain import ConfigError
    from configs.load import load_profile

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
    return settings


def _plan(arguments: argparse.Namespace) -> int:
    from configs.machine import load_machine

    settings, machine = _pipeline_of(arguments), load_machine()
    machine.make_home()  # Prefect makes its own folder in it
    os.environ.update(machine.environment())
    from flows.plan import plan, print_plan
    from tasks.shared_store import open_store

    planned = plan(settings, open_store(machine), arguments.force, arguments.until)
    print_plan(planned)
    return FAILED if planned.problems else OK


def _run(arguments: argparse.Namespace) -> int:
    from configs.machine import load_machine
    from flows.servers import ServersError, are_up

    settings, machine = _pipeline_of(arguments), load_machine()
    if not are_up(machine):
        raise ServersError("the servers are not up: run `klear up` first")
    os.environ.update(machine.environment())  # before Prefect and MLflow are imported
    # The display says it all in one line a stage; Prefect's page of the run keeps every log line.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # Nor that an event did not arrive: it is sent again with the next one.
    os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")
    from configs.load import load_profile
    from flows.run import run_pipeline

    if arguments.approve_cost is not None:
        from flows.approval import approve_all

        settings = approve_all(settings, arguments.approve_cost)
    return run_pipeline(
        settings,
        arguments.force,
        arguments.until,
        verify=arguments.verify,
        profile=load_profile(arguments.profile),
    )


def _unknown_stages(option: str, names: Sequence[str]) -> list[str]:
    from configs.explain import nearest

    return [
        f"{option} {name}: no such stage{nearest(name, STAGES) or '; one of ' + ', '.join(STAGES)}"
        for name in names
        if name not in STAGES
    ]


def _decontaminate(arguments: argparse.Namespace) -> int:
    from flows import decontaminate_command

    return decontaminate_command.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
