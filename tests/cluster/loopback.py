"""Ray on 127.0.0.1 that listens nowhere else.

`loopback.py ray ARGUMENTS` is Ray's command line, `loopback.py launch JOB LAUNCH` is
`tasks.models.launch`, and `loopback.py fixed JOB LAUNCH` the same with fixed answers.
"""

import sys

from ray._private import services
from ray.scripts.scripts import main as ray_main

from klear.tasks.models import launch

launched = launch.run_node


def run_fixed(command: list[str], log: str) -> int:
    """Travels to the nodes by value, as it belongs to the program that is run."""
    ours = {"klear.training.launch.run_job": "tests.cluster.fixed_answers"}
    return launched([ours.get(word, word) for word in command], log)


services.resolve_ip_for_localhost = str  # else the outward address stands in for 127.0.0.1
what, arguments = sys.argv[1], sys.argv[2:]
if what == "ray":
    sys.argv = ["ray", *arguments]
    ray_main()
if what == "fixed":
    launch.run_node = run_fixed
sys.exit(launch.main(arguments))
