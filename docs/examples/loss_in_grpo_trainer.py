"""A loss of klear in TRL's own GRPOTrainer: copy the class, and use it in GRPOTrainer's place.

The gradient is Eq. 12's, averaged over the tokens of the update as TRL's `loss_type="dapo"` does.
Clipping acts where updates leave the policy that sampled: `num_iterations` above 1, or
`steps_per_generation` above `gradient_accumulation_steps`. A loss that reads whole answers (gspo,
sapo, vespo) needs `answers`, too; GPPOTrainer has them, and the LM loss.
"""

from typing import Any

import torch
from trl import GRPOTrainer

from klear.configs.settings.loss import GPPO
from klear.training.losses import policy_weight, weighted_nll


class GPPOLossTrainer(GRPOTrainer):
    policy_loss: Any = GPPO(beta1=1.0)  # or ClipHigher(), CISPO(eps_high=0.28), DGPO()

    def _compute_loss(self, model, inputs):
        answer, mask = inputs["completion_ids"], inputs["completion_mask"]
        ids = torch.cat([inputs["prompt_ids"], answer], dim=1)
        attention = torch.cat([inputs["prompt_mask"], mask], dim=1)
        score = self._get_per_token_logps_and_entropies
        logp = score(model, ids, attention, logits_to_keep=answer.size(1))[0]
        old_logp = inputs.get("old_per_token_logps")
        old_logp = logp.detach() if old_logp is None else old_logp
        advantage = inputs["advantages"][:, None]
        weight = policy_weight(self.policy_loss, logp, old_logp, advantage) * advantage * mask
        tokens = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
        share = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        return weighted_nll(logp, weight / (tokens * share))
