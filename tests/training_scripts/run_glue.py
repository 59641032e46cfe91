"""Sequence classification with the Trainer, in the style of transformers' run_glue.py: padded batches, evaluation."""

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

(training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
words = ["[PAD]", "[UNK]", *(f"word{n}" for n in range(998))]
split = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
split.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=split, pad_token="[PAD]", unk_token="[UNK]")
model = BertForSequenceClassification(
    BertConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
)
raw = Dataset.from_list(
    [{"sentence": " ".join(f"word{(n * k) % 998}" for k in range(5 + n % 30)), "label": n % 2} for n in range(96)]
)
data = raw.map(lambda row: tokenizer(row["sentence"], truncation=True, max_length=32), remove_columns=["sentence"])
data = data.train_test_split(test_size=0.25)
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=data["train"],
    eval_dataset=data["test"],
    processing_class=tokenizer,
    data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8),
    compute_metrics=lambda p: {"accuracy": float((np.argmax(p.predictions, axis=1) == p.label_ids).mean())},
)
trainer.train()
