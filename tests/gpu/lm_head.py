"""The head pass of GPPO: policy and LM loss of a batch, from hidden states to both gradients.

Ours is what the trainer runs: one fused pass gives log-probabilities and entropies in tiles, the
policy and the LM loss share one weight per token, and the backward pass recomputes the tiles. The
peer makes the logits, takes their log-softmax and entropy, and sums the two losses. A tile has
4,096 tokens and 32,768 columns. The bound is the time of the three products without recomputation.
"""

import resource
import time
from typing import Any

ALPHA = 0.1
REPEAT = 3


class Problem:
    """Hidden states [N, H], head weights [V, H], targets, old log-probabilities, advantages."""

    def __init__(self, sizes: tuple[int, int, int], device: str, dtype: str) -> None:
        import torch

        torch.manual_seed(0)
        tokens, width, vocabulary = sizes
        like = {"device": device, "dtype": getattr(torch, dtype)}
        self.hidden = torch.randn(tokens, width, **like).requires_grad_()
        weight = torch.randn(vocabulary, width, **like) / width**0.5
        self.weight = weight.requires_grad_()
        self.target = torch.randint(vocabulary, (tokens,), device=device)
        self.advantage = torch.randn(tokens, device=device)
        self.positive = self.advantage > 0

    def weights(self, logp: Any) -> Any:
        """w of every token, [N]."""
        from klear.configs.settings.loss import GPPO
        from klear.training.losses import policy_weight, token_weight

        n = float(len(logp))
        advantage = self.advantage[None]
        weight = policy_weight(GPPO(), logp[None], logp[None].detach(), advantage)
        return token_weight(weight, advantage, self.positive[None], weight > -1, lm_weight=ALPHA,
                            policy_tokens=n, positive_tokens=n / 2)[0]  # fmt: skip

    def ours(self) -> None:
        from trl.kernels.chunked_logprob import ChunkedLogProbFunction

        from klear.training.losses import weighted_nll

        chunk = 32_768  # vocabulary columns of a tile, as the trainer's head
        logp, *_ = ChunkedLogProbFunction.apply(
            self.hidden, self.weight, None, self.target, 1.0, chunk, None, 1.0, ("entropy",)
        )
        weighted_nll(logp, self.weights(logp)).backward()

    def peer(self) -> None:
        logits = (self.hidden @ self.weight.T).float()
        logp_all = logits.log_softmax(-1)
        logp = logp_all.gather(1, self.target[:, None])[:, 0]
        -(logp_all.detach().exp() * logp_all.detach()).sum(-1)  # entropy, for the log
        n = len(logp)
        policy = -(logp * self.advantage).sum() / n
        lm = -logp[self.positive].sum() / (n / 2)
        (policy + ALPHA * lm).backward()

    def gemms(self) -> None:
        """Forward product and both gradients, without keeping the logits: 6 N H V operations."""
        import torch

        with torch.no_grad():
            rows = max(1, 2**28 // (self.weight.shape[0] * 4))
            for part in self.hidden.split(rows):
                logits = part @ self.weight.T
                logits @ self.weight
                logits.T @ part


def measure(side: str, sizes: tuple[int, int, int], device: str) -> dict[str, float]:
    """Least seconds of a pass (CPU time on CPU), and peak memory over the inputs in MB; of a peer
    that the GPU cannot hold, all of its memory."""
    import torch

    torch.set_num_threads(1)
    cuda = device == "cuda"
    problem = Problem(sizes, device, "bfloat16" if cuda else "float32")
    run = getattr(problem, side)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = []
    clock = time.perf_counter if cuda else time.process_time
    try:
        for _ in range(REPEAT + cuda):  # the first pass on a GPU compiles
            problem.hidden.grad = problem.weight.grad = None
            began = clock()
            run()
            if cuda:
                torch.cuda.synchronize()
            seconds.append(clock() - began)
    except torch.OutOfMemoryError:
        if side == "ours":
            raise
        return {"seconds": float("inf"), "peak_mb": torch.cuda.mem_get_info()[1] / 2**20}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    if cuda:
        peak = torch.cuda.max_memory_allocated() / 2**20  # weights and hidden states included
    return {"seconds": min(seconds), "peak_mb": max(1.0, peak)}  # what is measured is in pages
