"""Ray on 127.0.0.1 that listens nowhere else.

`loopback.py ray ARGUMENTS` is Ray's command line, `loopback.py launch JOB LAUNCH` is
`tasks.models.ray_launch`, and `loopback.py fixed JOB LAUNCH` the same with fixed answers.
"""

import sys
from pathlib import Path

from ray._private import services
from ray.scripts.scripts import main as ray_main

from tasks.models import ray_launch

FIXED = str(Path(__file__).with_name("fixed_answers.py"))


class FixedNode(ray_launch._Node):
    """Travels to the nodes by value, as it belongs to the program that is run."""

    def run(self, command: list[str], log: str) -> int:
        at = command.index("training.launch.node") - 1
        return super().run([*command[: at - 1], FIXED, *command[at + 2 :]], log)


services.resolve_ip_for_localhost = str  # else the outward address stands in for 127.0.0.1
what, arguments = sys.argv[1], sys.argv[2:]
if what == "ray":
    sys.argv = ["ray", *arguments]
    ray_main()
if what == "fixed":
    ray_launch._Node = FixedNode
sys.exit(ray_launch.main(arguments))
