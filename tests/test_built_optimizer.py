"""A live optimizer is a specification: what memsim reads from it is what its state really becomes."""

import pytest

import memsim

torch = pytest.importorskip("torch", reason="torch builds the optimizers")


def model():
    return torch.nn.Sequential(
        torch.nn.Embedding(512, 16), torch.nn.Linear(16, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 16)
    )


def really(module, optimizer):
    """Return bytes of every state tensor by parameter name after one step."""
    module(torch.randint(0, 512, (2, 3))).sum().backward()
    optimizer.step()
    names = {parameter: name for name, parameter in module.named_parameters()}
    return {
        (names[parameter], key): value.nbytes
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def predicted(estimate):
    return {(row.parameter, row.name): row.nbytes for row in estimate.optimizer_state if "python:" not in row.dtype}


@pytest.mark.parametrize("stepped", [False, True], ids=["before the first step", "after it"])
def test_parameter_groups_with_their_own_arguments(stepped):
    module = model()
    groups = [
        {"params": module[0].parameters(), "amsgrad": True},
        {"params": module[1].parameters(), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    measured = really(module, optimizer) if stepped else None
    estimate = memsim.estimate(module, optimizer=optimizer)
    assert predicted(estimate) == (measured or really(module, optimizer))
    assert ("0.weight", "max_exp_avg_sq") in predicted(estimate)
    assert not any(name.startswith("3.") for name, _ in predicted(estimate))


def test_frozen_parameters_get_nothing():
    module = model()
    module[0].requires_grad_(False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    assert predicted(memsim.estimate(module, optimizer=optimizer)) == really(module, optimizer)


def test_adagrad_makes_state_for_frozen_parameters_that_it_was_given():
    module = model()
    module[0].requires_grad_(False)
    given = torch.optim.Adagrad(module.parameters())
    assert predicted(memsim.estimate(module, optimizer=given)) == really(module, given)
    assert ("0.weight", "sum") in predicted(memsim.estimate(module, optimizer=given))
    trained = torch.optim.Adagrad(p for p in module.parameters() if p.requires_grad)
    assert predicted(memsim.estimate(module, optimizer=trained)) == really(module, trained)


def test_bitsandbytes_with_an_override_for_one_module():
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes builds the optimizer")
    module = model()
    optimizer = bnb.optim.AdamW(module.parameters(), lr=1e-3, optim_bits=8, min_8bit_size=1024)
    bnb.optim.GlobalOptimManager.get_instance().register_module_override(module[0], "weight", {"optim_bits": 32})
    estimate = memsim.estimate(module, optimizer=optimizer)
    assert predicted(estimate) == really(module, optimizer)
    assert predicted(estimate)["0.weight", "state1"] == 512 * 16 * 4
    assert predicted(estimate)["1.weight", "state1"] == 16 * 512


def test_a_class_that_memsim_does_not_know_is_an_error_and_not_its_parent():
    class Mine(torch.optim.Adam):
        pass

    module = model()
    with pytest.raises(memsim.MemsimError, match="state of Adam"):
        memsim.estimate(module, optimizer=Mine(module.parameters()))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex64", "float64"])
def test_a_module_may_be_of_any_dtype(dtype):
    module = torch.nn.Linear(8, 4, bias=False, device="meta").to(getattr(torch, dtype))
    estimate = memsim.estimate(module, optimizer="none")
    assert estimate.config.dtype == dtype
    assert estimate.static.parameter_bytes == 8 * 4 * module.weight.element_size()


def test_parameters_of_another_model_are_an_error():
    with pytest.raises(memsim.MemsimError, match="not the model's"):
        memsim.estimate(model(), optimizer=torch.optim.Adam(model().parameters()))


def test_an_optimizer_object_needs_the_module():
    with pytest.raises(memsim.MemsimError, match=r"torch\.nn\.Module"):
        memsim.estimate("gpt2", optimizer=torch.optim.Adam(model().parameters()))


def test_groups_by_name_pattern_equal_real_optimizers_side_by_side():
    module = model()
    muon = torch.optim.Muon([module[1].weight], lr=1e-3)
    adamw = torch.optim.AdamW([p for n, p in module.named_parameters() if n != "1.weight"])
    module(torch.randint(0, 512, (2, 3))).sum().backward()
    total = 0
    for optimizer in (muon, adamw):
        optimizer.step()
        total += sum(v.nbytes for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor))
    group = memsim.ParameterGroup(patterns=("1.weight",), optimizer="torch.optim.Muon")
    static = memsim.estimate(module, optimizer="adamw_torch", parameter_groups=[group]).static
    assert static.optimizer_state_bytes + static.optimizer_state_host_bytes == total
