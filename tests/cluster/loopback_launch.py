"""`tasks.models.ray_launch` for a cluster that lives on 127.0.0.1."""

import sys

from ray._private import services

from tasks.models.ray_launch import main

services.resolve_ip_for_localhost = str  # else the outward address stands in for 127.0.0.1
sys.exit(main(sys.argv[1:]))
