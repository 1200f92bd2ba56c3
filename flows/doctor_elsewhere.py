"""What the doctor asks of an object store and of a Ray cluster, and for how long.

    python -m flows.doctor_elsewhere store s3://bucket/folder
    python -m flows.doctor_elsewhere ray HOST:PORT

Each question is a process of its own, which is ended when it takes too long: the libraries behind
both try again for minutes. It prints one line, the fix included, and exits with 0 if all is well.
"""

import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from configs.explain import ConfigError

STORE_S = 30.0
RAY_S = 75.0
CONNECT_S = 5.0
NODES_S = 45.0  # of them: a node that never ran our code starts a process for it
LAST_WORDS = 300
CONTENT = b"klear doctor: may be removed\n"


def ask(what: str, address: str, seconds: float) -> tuple[bool, str]:
    """Whether `address` can be used as `what` (`store` or `ray`), and the line that says so."""
    command = [sys.executable, "-P", "-m", "flows.doctor_elsewhere", what, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False, f"{address} did not answer in {seconds:g} s; {FIXES[what]}"
    said = done.stdout.strip().rpartition("\n")[2]
    if "InvalidAuthToken" in done.stderr:
        said = f"{address} asks for a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH here"
    said = said or f"{address}: {' '.join(done.stderr.split())[-LAST_WORDS:]}; {FIXES[what]}"
    return done.returncode == 0, said


FIXES = {
    "store": "check KLEAR_STORE, AWS_ENDPOINT_URL_S3 and the keys (AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY), or unset KLEAR_STORE to keep results here",
    "ray": "start a node here (`ray start --address=HOST:PORT --num-cpus=0`), or unset "
    "KLEAR_RAY_ADDRESS to work locally",
}


def store_trouble(url: str) -> str:
    """Why results cannot be published at `url`, in a line; nothing if a small object can be
    written, read and removed."""
    from tasks.object_store import ObjectStore, StoreUnreachable

    name = f"klear-doctor/{uuid.uuid4().hex}"
    try:
        objects = ObjectStore(url)
        objects.write(name, CONTENT, new=True)
        read = objects.read(name)
        objects.remove_one(name)
    except FileNotFoundError as error:
        bucket = url.partition("://")[2].partition("/")[0]
        return f"{url}: there is no bucket {bucket} ({error}); make it, or correct KLEAR_STORE"
    except PermissionError as error:
        return f"{url}: {error}; the keys must allow to write, read and delete"
    except StoreUnreachable as error:
        return f"{error.__cause__ or error}; {FIXES['store']}"
    except ConfigError as error:
        return str(error)
    return "" if read == CONTENT else f"{url}: what was written is not what is read there"


def ray_trouble(address: str) -> tuple[str, int]:
    """Why the cluster cannot be used, in a line, and how many nodes it has.

    Every node is asked whether it runs this machine's code and packages.
    """
    from eval.ray_cluster import join

    try:
        _knock(address)
        ray = join(address)
    except RuntimeError as error:
        return str(error), 0
    nodes = [node for node in ray.nodes() if node["Alive"]]
    with ThreadPoolExecutor(len(nodes)) as threads:
        wrong = threads.map(lambda node: _node_trouble(ray, node), nodes)
        return "; ".join(filter(None, wrong)), len(nodes)


def _knock(address: str) -> None:
    """Raise RuntimeError if nobody listens at HOST:PORT: Ray itself asks for more than a minute."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # `auto`, and what `join` has words for
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise RuntimeError(
            f"no Ray cluster at KLEAR_RAY_ADDRESS={address} ({error}); {FIXES['ray']}"
        ) from error


def _node_trouble(ray: Any, node: dict[str, str]) -> str:
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from eval.ray_cluster import code_digest, same_code

    name = node["NodeManagerAddress"]
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(same_code).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        ray.get(task.remote(code_digest()), timeout=NODES_S)
    except RayTaskError as error:
        return str(error.cause)
    except GetTimeoutError:
        return f"node {name} did not answer in {NODES_S:g} s: restart Ray there"
    except RayError as error:
        return f"node {name} was lost ({type(error).__name__}): restart Ray there"
    return ""


def main(arguments: Sequence[str]) -> int:
    what, address = arguments
    if what == "store":
        wrong, good = store_trouble(address), f"{address}: written, read, removed"
    else:
        wrong, count = ray_trouble(address)
        good = f"{address}: {count} nodes with this code"
    print(" ".join(wrong.split()) or good)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
