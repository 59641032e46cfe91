"""Example batches: real models train on them, and they are what real tokenizers, processors and collators make."""

import pytest

torch = pytest.importorskip("torch", reason="models are real")
transformers = pytest.importorskip("transformers", reason="models are real")

from tiny_models import MODELS, config_of  # noqa: E402

from memsim.config import TrainingConfig  # noqa: E402
from memsim.errors import ModelError, UnknownNameError, UsageError  # noqa: E402
from memsim.record.training.build import build_model  # noqa: E402
from memsim.record.training.inputs import assumptions, default_seq_len, example_batch  # noqa: E402
from memsim.record.training.lengths import position_limit  # noqa: E402
from memsim.record.training.loops import start_loop  # noqa: E402
from memsim.record.training.token_inputs import IGNORED  # noqa: E402


def training(name, **options):
    tiny = MODELS[name]
    return TrainingConfig(
        **{"task": tiny.task, "dtype": "float32", "batch_size": 2, "seq_len": tiny.seq_len, **options}
    )


def made(name, weights="meta", config=None, **options):
    """Return a model and its batch."""
    model = build_model(config or config_of(name), training(name, **options), weights=weights)
    return model, example_batch(model, training(name, **options), changes=MODELS[name].changes)


def shapes(batch):
    return {key: (tuple(value.shape), value.dtype) for key, value in batch.items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_computes_a_loss_of_its_own_and_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    model, batch = made(name, weights="real")
    loop = start_loop(model, training(name), with_optimizer=False)
    loop.micro_step(batch)
    without = {key for key, p in model.named_parameters() if p.requires_grad and p.grad is None}
    expected = {key for key in without if any(part in key for part in MODELS[name].untrained)}
    assert without == expected
    assert bool(expected) == bool(MODELS[name].untrained)
    with torch.no_grad():
        outputs = model(**batch)
    assert (getattr(outputs, "loss", None) is None) == (MODELS[name].task == "base")


def test_at_least_thirty_families_are_among_the_models():
    assert len({config_of(name)["model_type"] for name in MODELS}) >= 30


@pytest.fixture
def tokenizer():
    """A tokenizer of BERT's class with a vocabulary of 64 words."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(59))]
    return transformers.BertTokenizer(vocab={word: n for n, word in enumerate(words)})


TEXT = " ".join(f"w{n}" for n in range(14))  # and [CLS], [SEP]


def test_a_batch_for_masked_language_modelling_is_what_tokenizer_and_collator_make(tokenizer):
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    real = collator([tokenizer(TEXT), tokenizer(TEXT)])
    batch = made("bert")[1]
    assert shapes(batch) == shapes(real)
    assert list(batch) == list(real)  # the order in which they are moved
    labelled = batch["labels"] != IGNORED
    assert 0.1 < labelled.float().mean() < 0.2
    assert torch.equal(batch["labels"][labelled], batch["input_ids"][labelled])


def test_a_batch_for_causal_language_modelling_is_what_tokenizer_and_collator_make(tokenizer):
    tokenizer.model_input_names = transformers.GPT2Tokenizer.model_input_names
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    real = collator([tokenizer(TEXT), tokenizer(TEXT)])
    batch = made("gpt2")[1]
    assert shapes(batch) == shapes(real)
    assert torch.equal(batch["labels"], batch["input_ids"])


def test_a_batch_for_an_encoder_decoder_is_what_the_collator_makes(tokenizer):
    tokenizer.model_input_names = transformers.T5Tokenizer.model_input_names
    collator = transformers.DataCollatorForSeq2Seq(tokenizer)
    rows = [{**tokenizer(TEXT), "labels": tokenizer(TEXT)["input_ids"]} for _ in range(2)]
    assert shapes(made("t5")[1]) == shapes(collator(rows))


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("distilbert", {"labels": ((2,), torch.int64)}),
        ("roberta", {"labels": ((2, 16), torch.int64)}),
        ("deberta-v2", {"start_positions": ((2,), torch.int64), "end_positions": ((2,), torch.int64)}),
        ("bert-next", {"labels": ((2,), torch.int64)}),
        ("bert-pretraining", {"labels": ((2, 16), torch.int64), "next_sentence_label": ((2,), torch.int64)}),
        ("electra", {"labels": ((2,), torch.int64)}),
        ("bert-base", {}),
        ("vit", {"labels": ((2,), torch.int64)}),
        ("vit-masked", {"bool_masked_pos": ((2, 4), torch.bool)}),
        ("segformer", {"labels": ((2, 64, 64), torch.int64)}),
    ],
)
def test_labels_are_those_that_the_task_has(name, labels):
    batch = made(name)[1]
    inputs = {"input_ids", "attention_mask", "token_type_ids", "pixel_values"}
    assert {key: value for key, value in shapes(batch).items() if key not in inputs} == labels


def test_a_question_of_multiple_choice_has_four_answers_unless_changed():
    model, batch = made("electra")
    assert batch["input_ids"].shape == (2, 4, 16)
    three = example_batch(model, training("electra"), changes={"num_choices": 3})
    assert three["input_ids"].shape == (2, 3, 16)
    assert any("4 answers" in sentence for sentence in assumptions(model, training("electra")))


def test_labels_of_a_regression_are_numbers():
    batch = made("distilbert", num_labels=1)[1]
    assert shapes(batch)["labels"] == ((2,), torch.float32)


def test_pixels_are_what_the_image_processor_makes():
    processor = transformers.ViTImageProcessorPil(size={"height": 16, "width": 16})
    picture = torch.zeros(3, 40, 30, dtype=torch.uint8).numpy()
    real = processor([picture, picture], return_tensors="pt")
    assert shapes(made("vit")[1])["pixel_values"] == shapes(real)["pixel_values"]


def test_samples_and_their_mask_are_what_the_feature_extractor_makes():
    sound = torch.zeros(1600).numpy()
    for name, norm, masked in (("wav2vec2", "layer", True), ("wav2vec2", "group", False)):
        extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=masked)
        real = extractor([sound, sound], sampling_rate=16_000, return_tensors="pt", padding=True)
        batch = made(name, config=config_of(name, feat_extract_norm=norm))[1]
        batch.pop("labels")
        assert shapes(batch) == shapes(real)


def test_spectrograms_are_what_the_feature_extractor_makes():
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=30)
    real = extractor(torch.zeros(16_000).numpy(), sampling_rate=16_000, return_tensors="pt")
    batch = made("whisper", config=config_of("whisper", max_source_positions=1500))[1]
    assert shapes(batch)["input_features"] == ((2, *real["input_features"].shape[1:]), torch.float32)
    assert batch["labels"].shape == (2, 16)


def test_an_image_has_as_many_places_in_the_text_as_the_model_makes_features():
    for name, count in (("llava", (16 // 8) ** 2), ("qwen2_vl", (448 // 28) ** 2)):
        model, batch = made(name, weights="real")
        assert ((batch["input_ids"] == 60).sum(dim=1) == count).all()
        model(**batch)  # it compares the two itself


def test_text_alone_is_a_batch_of_a_multimodal_model_too():
    model = build_model(config_of("llava"), training("llava"))
    batch = example_batch(model, training("llava"), changes={"num_images": 0})
    assert list(batch) == ["input_ids", "attention_mask", "labels"]


@pytest.mark.parametrize(("name", "longest"), [("roberta", 32), ("gpt2", 32), ("opt", 32), ("bart", 32), ("bert", 32)])
def test_the_longest_sequence_is_the_longest_that_the_real_model_takes(name, longest):
    model = build_model(config_of(name), training(name), weights="real").eval()
    assert position_limit(model) == longest
    model(**example_batch(model, training(name, seq_len=longest)))
    ids = torch.full((1, longest + 1), 5)
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    with pytest.raises(UsageError, match=f"seq_len {longest + 1} is longer than the {longest} positions of"):
        example_batch(model, training(name, seq_len=longest + 1))


@pytest.mark.parametrize("name", ["llama", "t5", "bloom", "mamba"])
def test_models_without_a_table_of_positions_take_any_length(name):
    model = build_model(config_of(name), training(name), weights="real")
    assert position_limit(model) is None
    with torch.no_grad():
        model(**example_batch(model, training(name, seq_len=100)))


def test_a_sequence_has_512_tokens_or_as_many_as_the_model_has_positions():
    assert default_seq_len({"max_position_embeddings": 4096}, "causal-lm") == 512
    assert default_seq_len({"n_positions": 128}, "causal-lm") == 128
    assert default_seq_len({"text_config": {"max_position_embeddings": 77}}, None) == 77
    assert made("gpt2", seq_len=None)[1]["input_ids"].shape == (2, 32)


def test_no_token_but_the_last_means_something():
    config = config_of("llava")
    batch = made("llava", config={**config, "pad_token_id": 7})[1]
    text = batch["input_ids"][:, 4:-1]
    assert not torch.isin(text, torch.tensor([60, 7, 1, 2])).any()


def test_inputs_are_of_the_dtype_of_half_weights_and_that_is_said():
    model, batch = made("vit", dtype="bfloat16")
    assert batch["pixel_values"].dtype == torch.bfloat16
    assert any("bfloat16 like the weights" in said for said in assumptions(model, training("vit", dtype="bfloat16")))
    assert made("vit", autocast="bfloat16")[1]["pixel_values"].dtype == torch.float32


def test_what_is_taken_for_granted_is_said():
    said = {name: " ".join(assumptions(made(name)[0], training(name))) for name in ("bert-base", "wav2vec2", "llava")}
    assert "The loss is the mean of the model's first output" in said["bert-base"]
    assert "layerdrop is 0" in said["wav2vec2"]
    assert "0.1 seconds at 16 kHz" in said["wav2vec2"]
    assert "4 of them places of its one image, which is 16 x 16 pixels" in said["llava"]


@pytest.mark.parametrize(
    ("name", "options", "changes", "error", "message"),
    [
        ("vit", {"seq_len": 10}, {}, UsageError, "takes images, which have no seq_len"),
        ("llava", {"seq_len": 4}, {}, UsageError, "no place for the image, which takes 4 tokens; give at least 5"),
        ("whisper", {"seq_len": 17}, {}, UsageError, "longer than the 16 tokens that the model can write"),
        ("bert", {}, {"image_sise": 3}, UnknownNameError, "image_size"),
        ("bert", {}, {"image_size": "3"}, UsageError, "must be a whole number"),
    ],
)
def test_what_a_model_cannot_take_is_an_error_of_a_few_lines(name, options, changes, error, message):
    model = build_model(config_of(name), training(name))
    with pytest.raises(error, match=message) as raised:
        example_batch(model, training(name, **options), changes=changes)
    assert len(str(raised.value).splitlines()) <= 3


def test_a_model_whose_inputs_are_not_known_is_told():
    config = {"model_type": "patchtst"}
    asked = TrainingConfig(task="base", dtype="float32")
    with pytest.raises(ModelError, match=r"memsim makes no inputs for PatchTSTModel.*past_values"):
        example_batch(build_model(config, asked), asked)
