"""Ray's command line for a cluster that lives on 127.0.0.1 and listens nowhere else."""

import sys

from ray._private import services
from ray.scripts.scripts import main

services.resolve_ip_for_localhost = str  # else the outward address stands in for 127.0.0.1
sys.argv[0] = "ray"
main()
