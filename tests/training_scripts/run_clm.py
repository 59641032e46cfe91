"""Causal language modelling with the Trainer, in the style of transformers' run_clm.py."""

from dataclasses import dataclass, field

from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
)


@dataclass
class ModelArguments:
    model_type: str = field(default="llama")
    block_size: int = field(default=128)


parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
config = AutoConfig.for_model(
    model_args.model_type,
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = AutoModelForCausalLM.from_config(config)
text = [[i % 1000 for i in range(n, n + 500)] for n in range(64)]
raw = Dataset.from_dict({"input_ids": text})


def group_texts(examples):
    joined = [token for text in examples["input_ids"] for token in text]
    size = model_args.block_size
    blocks = [joined[i : i + size] for i in range(0, len(joined) // size * size, size)]
    return {"input_ids": blocks, "labels": [list(b) for b in blocks]}


grouped = raw.map(group_texts, batched=True, remove_columns=["input_ids"])
split = grouped.train_test_split(test_size=0.1)


def compute_metrics(eval_preds):
    preds, labels = eval_preds
    return {"accuracy": float((preds[:, :-1] == labels[:, 1:]).mean())}


trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=split["train"],
    eval_dataset=split["test"],
    data_collator=default_data_collator,
    compute_metrics=compute_metrics,
    preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=-1),
)
result = trainer.train()
trainer.save_model()
trainer.log_metrics("train", result.metrics)
metrics = trainer.evaluate()
trainer.log_metrics("eval", metrics)
