"""The processes of an RL stage that starts its own vLLM server: `python … CHECKPOINT PROBLEMS
OUT STEPS`.

Prints how often the stage had to start again.
"""

import sys
from pathlib import Path

from killed_child import rl_settings

from configs.settings.placing import launch_for
from tasks.models import launch
from training.launch.jobs import RLJob


def main(checkpoint: Path, problems: Path, out: Path, steps: int) -> int:
    """Launch as the stage does, but for the judge."""
    launch.alone = lambda job_file: [
        sys.executable, str(Path(__file__).with_name("paid_for_length.py")), str(job_file)
    ]  # fmt: skip
    # slower than in one rollout or two: a policy that is always paid has nothing to learn
    changes = {"steps": steps, "learning_rate": 2e-3}
    settings = rl_settings("vllm_server").model_copy(update=changes)
    job = RLJob(out=out, checkpoint=checkpoint, problems=problems, seed=3, settings=settings)
    return launch.run_launched(job, out, launch_for(settings))


if __name__ == "__main__":
    checkpoint, problems, out, steps = sys.argv[1:]
    print(main(Path(checkpoint), Path(problems), Path(out), int(steps)))
