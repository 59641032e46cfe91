"""TRL's SFT with LoRA, in the style of trl/scripts/sft.py; --4-bit (QLoRA) and --8-bit load a quantized base."""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, prepare_model_for_kbit_training
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from trl import SFTConfig, SFTTrainer

quantizations = {
    "--4-bit": BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    ),
    "--8-bit": BitsAndBytesConfig(load_in_8bit=True),
}
quantization = next((quantizations[option] for option in sys.argv if option in quantizations), None)
base = Path("base-model")
words = ["<pad>", "<eos>", "<unk>", *(f"word{n}" for n in range(997))]
words_of = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
words_of.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words_of, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
config = LlamaConfig(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    pad_token_id=0,
    eos_token_id=1,
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(base)
tokenizer.save_pretrained(base)

model = AutoModelForCausalLM.from_pretrained(
    base, dtype=torch.bfloat16, quantization_config=quantization, device_map={"": 0}
)
if quantization:
    model = prepare_model_for_kbit_training(model)
dataset = Dataset.from_list([{"text": " ".join(f"word{(n + k) % 997}" for k in range(60))} for n in range(64)])
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="sft",
        per_device_train_batch_size=4,
        max_length=64,
        max_steps=10,
        logging_steps=1,
        bf16=True,
        report_to="none",
        optim="paged_adamw_8bit" if quantization else "adamw_torch",
    ),
    train_dataset=dataset,
    processing_class=tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
trainer.train()
trainer.save_model()
