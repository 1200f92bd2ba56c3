"""Runs a typical program in the zygote, so that no test pays for what every first run changes.

Python counts calls, specialises code and fills caches as it runs. In a forked child each of these
writes copies a page, for every test again; after this they are done once.
"""

import json
import os
from typing import Any

from eval.sandbox.zygote import roles as zygote_roles
from eval.sandbox.zygote.roles import Process

_RUNS = 12  # Python 3.11 specialises code after 8
_INPUT = b"1 2\n3\n[4, 5]\n"
_PROGRAM = """
import sys, math, heapq, bisect, itertools, functools, collections
from typing import List, Optional
from collections import Counter, defaultdict, deque
def solve(n):
    table = {}
    for i in range(n):
        table[i] = table.get(i, 0) + 1
    return sorted(table)
class Solution:
    def join(self, numbers: List[int], name: str) -> Optional[List[int]]:
        places = defaultdict(list)
        for i, number in enumerate(numbers):
            places[number].append(i)
        return [len(place) for place in places.values()]
if __name__ == "__main__":
    a, b = map(int, input().split())
    n = int(sys.stdin.readline())
    data = [int(word) for word in sys.stdin.read().strip("[]\\n").split(",")]
    print(a + b, *data)
    print(" ".join(map(str, solve(n))))
    sys.stdout.write(f"{max(data)}\\n")
"""


def warm_up(names: dict[str, Any]) -> None:
    """Leaves standard streams as a test finds them: new, at the start of an empty file."""
    code = compile(_PROGRAM, "solution.py", "exec", dont_inherit=True)
    for _ in range(_RUNS):
        _empty_files(_INPUT)
        zygote_roles.open_streams()
        process = Process(zygote_roles.module_named("__main__", names), names)

        def body(process: Process = process) -> None:
            exec(code, process.globals)
            join = zygote_roles.function_of(process, "join")
            zygote_roles.encode(join(*json.loads('[[1, 2], "x"]')))

        process.run(body)
    _empty_files(b"")
    zygote_roles.open_streams()


def _empty_files(stdin: bytes) -> None:
    for fd, content in ((0, stdin), (1, b"")):
        file = os.memfd_create("empty")
        os.write(file, content)
        os.lseek(file, 0, os.SEEK_SET)
        os.dup2(file, fd)
        os.close(file)
