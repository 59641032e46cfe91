"""Every optimizer that is not torch's, transformers' or bitsandbytes'.

`registry` imports this module when a name is asked for that these three do not have, or when all names are: most
estimates need none of it, and importing it would be half of their time.
"""

from memsim.optimizers import (  # noqa: F401  (each registers its rules or steps)
    compiled_step,
    few_states_step,
    fused_backward_step,
    lion_step,
    low_rank_step,
    master_weights_step,
    muon_step,
    optimi_step,
    parameter_free_step,
    pytorch_optimizer_factored_step,
    pytorch_optimizer_matrix_step,
    pytorch_optimizer_muon_step,
    pytorch_optimizer_step,
    schedulefree_step,
    simple_packages_step,
    third_party_names,
    torch_optimizer_step,
)
