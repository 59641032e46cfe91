"""Every class of `torch.optim`: its state and the temporaries of its `step()`, read and measured at torch 2.13.0."""

from memsim.optimizers.torch_optim import (  # noqa: F401  (each registers its rules)
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    asgd,
    lbfgs,
    lbfgs_step,
    muon,
    nadam,
    radam,
    rmsprop,
    rprop,
    sgd,
    sparse_adam,
)
