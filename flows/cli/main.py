"""The command `klear`. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 Ctrl-C.

A command's module is imported when the command runs, so that `klear --help` is instant.
"""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError, Parameter

OK, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
COMMANDS = {
    "up": ("cockpit.servers:up", "start Prefect, MLflow and a worker on this machine"),
    "down": ("cockpit.servers:down", "end what `klear up` started"),
    "serve": ("cockpit.servers:serve", "a server or worker in the foreground, for containers"),
    "run": ("cli.run:run", "run a profile; finished stages are reused"),
    "rerun": ("cli.run:rerun", "one stage of a complete run again, on that run's results"),
    "plan": ("cli.run:plan", "what a run would reuse, resume and compute, and why"),
    "status": ("cli.store:status", "servers, latest runs and finished stages"),
    "lineage": ("cli.store:lineage", "the chain behind a score, a checkpoint or any result"),
    "store": ("cli.store:store", "list, measure, verify and clean the store"),
    "doctor": ("cockpit.doctor:doctor", "check versions, sandbox, ports, disk and GPU"),
    "preview": ("cli.preview:preview", "rows of a file as the judge sees them"),
    "judge": ("cli.judge:judge", "judge answers to problems"),
    "sandbox": ("cli.judge:sandbox", "check: does this machine isolate programs?"),
    "decontaminate": ("cli.decontaminate:decontaminate", "count or remove what benchmarks share"),
    "ablate": ("cli.run:ablate", "repeat a table or figure of the paper, with intervals"),
    "eval": ("cli.eval:evaluate", "score any model on benchmarks"),
}


def app() -> App:
    """The command line."""
    klear = App(
        name="klear",
        help="From a base model to a reasoning model, every stage restartable.",
        version=lambda: f"klear {version('klear')}",
        version_flags=("--version",),
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    for name, (function, text) in COMMANDS.items():
        klear.command(f"klear.flows.{function}", name=name, help=text)
    return klear


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run one command; expected failures are lines on stderr, never tracebacks."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if not words:
            raise CycloptsError("name a command")
        return app()(words) or OK
    except CycloptsError as error:
        command = " ".join(["klear", *words[:1]]) if words and words[0] in COMMANDS else "klear"
        print(f"{command}: {str(error).rstrip('.')}; usage: {command} --help", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        from ...configs.settings.explain import ConfigError
        from ...eval.sandbox import SandboxUnavailable
        from ...tasks.store.shared import StoreUnreachable
        from ..cockpit.servers import ServersError

        failures = (ServersError, SandboxUnavailable, StoreUnreachable, OSError)
        if not isinstance(error, (ConfigError, *failures)):
            raise
        print(error, file=sys.stderr)
        return WRONG_USAGE if isinstance(error, ConfigError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
