"""TCP ports for what a stage starts: free ones, of a range that no system hands out by itself."""

import random
import socket

PORTS = range(20_000, 30_000)


def free_port(host: str = "") -> int:
    """A port of this machine on which nothing listens now; `host` is the address to listen on.

    Another program may take it before it is used. Raises OSError where no port is free, or the
    address is none of this machine.
    """
    refusal = OSError("no port was tried")
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                refusal = error
            else:
                return port
    raise refusal
