"""FSDP2 over gloo: accelerate shards on GPUs only, and what is not run cannot be trusted.

With this the tests train, save and resume sharded models in two processes without a GPU.
"""

from typing import Any

from accelerate import state
from accelerate.utils import DistributedType


def allow_fsdp_on_cpu() -> None:
    """Let accelerate take its FSDP path in processes that have no GPU."""
    original = state.AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        plugin = fsdp_plugin or vars(self).get("fsdp_plugin")  # every call resets the type
        if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            if self._mixed_precision != "no":
                plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = plugin

    state.AcceleratorState.__init__ = init  # type: ignore[method-assign]
