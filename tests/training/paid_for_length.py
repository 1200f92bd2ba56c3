"""`python paid_for_length.py JOB.json`: `training.launch.child` with a judge that pays for an
even length.

So a model that has learnt nothing yet has something to learn.
"""

import sys
from unittest import mock

from killed_child import LengthJudge

from training.launch import child
from training.rl import train as rl

if __name__ == "__main__":
    with mock.patch.object(rl, "Judge", LengthJudge):
        sys.exit(child.main(sys.argv[1:]))
