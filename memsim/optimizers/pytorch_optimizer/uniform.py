"""The optimizers of `pytorch_optimizer` whose state follows from the parameter's shape alone.

Read at pytorch_optimizer 4.1.0, `init_group` and `step` of each class; steps are counted by group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsim.optimizers.entry_table import table_rule
from memsim.optimizers.pytorch_optimizer.arguments import ARGUMENTS
from memsim.optimizers.registry import register

FACTS: dict[str, Any] = {"package": "pytorch-optimizer", "version": "4.1.0"}
FOLDER = "pytorch_optimizer/optimizer"
_FUSED = frozenset({"LOMO"})

# Class: file and line, its keys, and the keys that an argument adds (see entry_table).
# fmt: off
_TABLE: Mapping[str, tuple[str, str] | tuple[str, str, Mapping[str, str]]] = {
    "ADOPT": ("adopt.py:70", "exp_avg exp_avg_sq"),
    "ASGD": ("sgd.py:403", ""),
    "AccSGD": ("sgd.py:69", "momentum_buffer"),
    "AdEMAMix": ("ademamix.py:87", "exp_avg exp_avg_sq exp_avg_slow"),
    "AdaBelief": ("adabelief.py:78", "exp_avg exp_avg_var", {"ams_bound": "max_exp_avg_var"}),
    "AdaBound": ("adabound.py:77", "exp_avg exp_avg_sq", {"ams_bound": "max_exp_avg_sq"}),
    "AdaDelta": ("adadelta.py:64", "square_avg acc_delta"),
    "AdaGC": ("adagc.py:93", "exp_avg exp_avg_sq gamma:()"),
    "AdaHessian": ("adahessian.py:80", "exp_avg exp_hessian_diag_sq hessian"),
    "AdaMax": ("adamax.py:64", "exp_avg exp_inf"),
    "AdaMod": ("adamod.py:66", "exp_avg exp_avg_sq exp_avg_lr"),
    "AdaNorm": ("adanorm.py:72", "exp_avg exp_avg_var exp_grad_norm:(1)", {"ams_bound": "max_exp_avg_var"}),
    "AdaPNM": ("adapnm.py:69", "exp_avg exp_avg_sq neg_exp_avg", {"ams_bound": "max_exp_avg_sq"}),
    "AdaSmooth": ("adasmooth.py:64", "prev_param s n exp_avg_sq"),
    "AdaTAM": ("tam.py:236", "s exp_avg exp_avg_sq"),
    "Adai": ("adai.py:86", "exp_avg exp_avg_sq beta1_prod"),
    "AdamC": ("adamc.py:72", "exp_avg exp_avg_sq", {"ams_bound": "max_exp_avg_sq"}),
    "AdamG": ("adamg.py:74", "m v r"),
    "AdamP": ("adamp.py:359", "exp_avg exp_avg_sq"),
    "AdamS": ("adams.py:79", "exp_avg exp_avg_sq", {"ams_bound": "max_exp_avg_sq"}),
    "AdamWSN": ("snsm.py:96", "exp_avg exp_avg_sq"),
    "Adan": ("adan.py:70", "exp_avg exp_avg_sq exp_avg_diff previous_grad"),
    "Aida": ("aida.py:86", "exp_avg exp_avg_var", {"ams_bound": "max_exp_avg_var"}),
    "AliG": ("alig.py:68", "", {"momentum": "momentum_buffer"}),
    "Amos": ("amos.py:70", "exp_avg_sq:() decay:()", {"momentum": "exp_avg"}),
    "Ano": ("ano.py:73", "exp_avg exp_avg_sq"),
    "ApolloDQN": ("apollo.py:79", "exp_avg_grad approx_hessian update"),
    "AvaGrad": ("avagrad.py:67", "exp_avg exp_avg_sq"),
    "BSAM": ("sam.py:745", "s noisy_gradient momentum"),
    "DAdaptAdaGrad": ("dadapt.py:85", "alpha_k sk x0"),
    "DAdaptAdam": ("dadapt.py:432", "s exp_avg exp_avg_sq"),
    "DAdaptAdan": ("dadapt.py:919", "s exp_avg exp_avg_sq exp_avg_diff previous_grad"),
    "DAdaptLion": ("dadapt.py:1198", "exp_avg s"),
    "DAdaptSGD": ("dadapt.py:697", "z s x0"),
    "DiffGrad": ("diffgrad.py:78", "exp_avg exp_avg_sq previous_grad", {"ams_bound": "max_exp_avg_sq"}),
    "DualAdam": ("dual_adam.py:73", "exp_avg exp_avg_sq"),
    "EXAdam": ("exadam.py:63", "exp_avg exp_avg_sq"),
    "EmoLynx": ("emonavi.py:367", "exp_avg", {"use_shadow": "shadow"}),
    "EmoNavi": ("emonavi.py:177", "exp_avg exp_avg_sq", {"use_shadow": "shadow"}),
    "FOCUS": ("focus.py:53", "exp_avg pbar"),
    "FTRL": ("ftrl.py:69", "z n"),
    "Fromage": ("fromage.py:53", "", {"p_bound": "max:()"}),
    "Grams": ("grams.py:62", "exp_avg exp_avg_sq"),
    "Gravity": ("gravity.py:48", "v"),
    "GrokFastAdamW": ("grokfast.py:183", "exp_avg exp_avg_sq", {"grokfast": "grok_exp_avg"}),
    "Kate": ("kate.py:63", "m b"),
    "LARS": ("lars.py:66", "", {"momentum": "momentum_buffer"}),
    "LOMO": ("lomo.py:84", ""),
    "LaProp": ("laprop.py:75", "exp_avg exp_avg_sq exp_avg_lr_1:float exp_avg_lr_2:float",
        {"centered": "exp_mean_avg_beta2", "ams_bound": "max_exp_avg_sq"}),
    "Lion": ("lion.py:62", "exp_avg"),
    "MADGRAD": ("madgrad.py:78", "grad_sum_sq s", {"momentum": "x0"}),
    "MARS": ("mars.py:99", "exp_avg exp_avg_sq last_grad", {"ams_bound": "max_exp_avg_sq"}),
    "MSVAG": ("msvag.py:45", "exp_avg exp_avg_sq"),
    "NovoGrad": ("novograd.py:69", "grads_ema:() moments"),
    "PAdam": ("padam.py:69", "exp_avg exp_avg_sq"),
    "PID": ("pid.py:70", "", {"momentum": "grad_buffer i_buffer d_buffer"}),
    "PNM": ("pnm.py:64", "pos_momentum neg_momentum"),
    "Prodigy": ("prodigy.py:96", "s p0 exp_avg exp_avg_sq"),
    "QHAdam": ("qhadam.py:68", "beta1_weight:(1)f32 beta2_weight:(1)f32 exp_avg exp_avg_sq"),
    "QHM": ("qhm.py:64", "momentum_buffer"),
    "RAdam": ("radam.py:70", "exp_avg exp_avg_sq"),
    "ROSE": ("rose.py:76", ""),
    "Ranger": ("ranger.py:86", "exp_avg exp_avg_sq slow_buffer"),
    "Ranger21": ("ranger21.py:157", "grad_ma variance_ma lookahead_params neg_grad_ma max_variance_ma"),
    "SCION": ("scion.py:435", "d"),
    "SCIONLight": ("scion.py:636", ""),
    "SGDP": ("adamp.py:188", "momentum"),
    "SGDSaI": ("sgd.py:701", "gsnr:()", {"momentum": "momentum_buffer"}),
    "SGDW": ("sgd.py:215", "", {"momentum": "momentum_buffer"}),
    "SRMM": ("srmm.py:49", "mov_avg_grad mov_avg_param"),
    "SWATS": ("swats.py:69", "exp_avg exp_avg_sq exp_avg2:(1)", {"ams_bound": "max_exp_avg_sq"}),
    "ScheduleFreeAdamW": ("schedulefree.py:314", "z exp_avg_sq", {"ams_bound": "max_exp_avg_sq"}),
    "ScheduleFreeRAdam": ("schedulefree.py:527", "z exp_avg_sq"),
    "ScheduleFreeSGD": ("schedulefree.py:124", "z"),
    "SignSGD": ("sgd.py:545", "", {"momentum": "momentum_buffer"}),
    "SimplifiedAdEMAMix": ("ademamix.py:353", "exp_avg exp_avg_sq num_sum:float den_sum:float"),
    "SophiaH": ("sophia.py:83", "momentum hessian_moment hessian"),
    "StableSPAM": ("spam.py:489", "exp_avg exp_avg_sq m_norm_t:() v_norm_t:() m_max_t:()"),
    "TAM": ("tam.py:76", "s momentum_buffer"),
    "Tiger": ("tiger.py:60", "exp_avg"),
    "VSGD": ("sgd.py:859", "mug bg bhg"),
    "Yogi": ("yogi.py:81", "exp_avg exp_avg_sq"),
}
# fmt: on

for _name, (_line, *_entries) in _TABLE.items():
    register(
        f"pytorch_optimizer.{_name}",
        arguments=ARGUMENTS[_name],
        source=f"{FOLDER}/{_line}",
        fuses_backward=_name in _FUSED,
        ignores="Keyword arguments that reach the groups only (adanorm), and numbers that the groups keep as tensors.",
        **FACTS,
    )(table_rule(*_entries))
