"""Architectures of ``transformers``: for each type of model what makes it small, and its inputs."""

import copy

import torch

WORDS, WIDTH, LAYERS, HEADS, INNER, LENGTH = 1000, 64, 2, 4, 128, 512
COMMON = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
NARROW = COMMON | {"embedding_size": 32}
SHARED = COMMON | {"num_key_value_heads": HEADS // 2, "head_dim": WIDTH // HEADS}
EXPERTS = SHARED | {
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": WIDTH,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
OLDER = {
    "vocab_size": WORDS,
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": LENGTH,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
PAIRED = {
    "vocab_size": WORDS,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": WORDS,
    "d_model": WIDTH,
    "d_kv": WIDTH // HEADS,
    "d_ff": INNER,
    "num_layers": LAYERS,
    "num_decoder_layers": LAYERS,
    "num_heads": HEADS,
}
VISION = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "image_size": 32,
    "patch_size": 4,
}
FRAMES = VISION | {"num_frames": 2}
WINDOWS = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 32,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}
STAGES = {"embedding_size": 16, "hidden_sizes": [32, WIDTH], "depths": [1, 1]}
PYRAMID = {"hidden_sizes": [32, 64, 64, 64], "depths": [1, 1, 1, 1]}
REDUCED = {
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "num_encoder_blocks": 2,
    "num_attention_heads": [1, 2],
    "sr_ratios": [4, 2],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "mlp_ratios": [2, 2],
}
SOUND = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "conv_dim": [32, 32, 32],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
    "apply_spec_augment": False,
}
STATES = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
SPACE = STATES | {"state_size": 8}
TEXT = {name: COMMON[name] for name in COMMON if name != "max_position_embeddings"}
TOWERS = {
    "text_config": TEXT | {"max_position_embeddings": 64, "eos_token_id": WORDS - 1},
    "vision_config": VISION | {"patch_size": 8},
    "projection_dim": 32,
}


def tokens(batch, length):
    return torch.randint(5, WORDS - 5, (batch, length))


def text(batch, length):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1:, length - 3 :] = 0
    return {"input_ids": tokens(batch, length), "attention_mask": mask}


def plain(batch, length):
    return {"input_ids": tokens(batch, length)}


def pair(batch, length):
    return plain(batch, length) | {"decoder_input_ids": tokens(batch, length // 2)}


def image(batch, _, size=32):
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def photo(batch, length):
    return image(batch, length, 64)


def video(batch, _):
    return {"pixel_values": torch.randn(batch, 2, 3, 32, 32)}


def wave(batch, _):
    return {"input_values": torch.randn(batch, 800)}


def spectrum(batch, _):
    made = {"input_features": torch.randn(batch, 16, 64)}
    return made | {"decoder_input_ids": tokens(batch, 8)}


def captioned(batch, length):
    return text(batch, 12) | image(batch, length)


def latent(batch, _):
    return {"inputs": torch.randn(batch, 24, 32)}


RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
ARCHITECTURES = {
    **dict.fromkeys(
        ("bert", "roberta", "camembert", "ernie", "mpnet", "megatron-bert"), (COMMON, text)
    ),
    **dict.fromkeys(("albert", "electra", "convbert"), (NARROW, text)),
    "distilbert": (
        {
            "vocab_size": WORDS,
            "dim": WIDTH,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": INNER,
        },
        text,
    ),
    "deberta": (COMMON | RELATIVE | {"max_relative_positions": 64}, text),
    "deberta-v2": (COMMON | RELATIVE | {"position_buckets": 32, "share_att_key": True}, text),
    "squeezebert": (COMMON | {"embedding_size": WIDTH}, text),
    "roformer": (COMMON | {"embedding_size": WIDTH}, text),
    "fnet": (COMMON, plain),
    "longformer": (COMMON | {"attention_window": 8}, lambda batch, _: text(batch, 16)),
    "xlnet": (
        {
            "vocab_size": WORDS,
            "d_model": WIDTH,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "d_inner": INNER,
        },
        text,
    ),
    **dict.fromkeys(("gpt2", "gptj", "codegen", "gpt_bigcode"), (OLDER | {"rotary_dim": 8}, text)),
    "gpt_neox": (COMMON, text),
    "opt": (COMMON | {"ffn_dim": INNER, "word_embed_proj_dim": WIDTH}, text),
    "bloom": (STATES | {"n_layer": LAYERS, "n_head": HEADS}, text),
    "mpt": ({"vocab_size": WORDS, "d_model": WIDTH, "n_heads": HEADS, "n_layers": LAYERS}, text),
    "falcon": (COMMON, text),
    **dict.fromkeys(
        ("llama", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "stablelm", "starcoder2"),
        (SHARED, text),
    ),
    **dict.fromkeys(("olmo2", "granite", "cohere", "nemotron", "glm", "helium"), (SHARED, text)),
    "mistral": (SHARED | {"sliding_window": 8}, text),
    "mixtral": (EXPERTS, text),
    "qwen3_moe": (EXPERTS, text),
    "mamba": (SPACE, plain),
    "mamba2": (SPACE | {"head_dim": 16, "num_heads": 8, "n_groups": 1, "chunk_size": 8}, plain),
    "rwkv": (STATES | {"attention_hidden_size": WIDTH, "context_length": LENGTH}, plain),
    **dict.fromkeys(("t5", "mt5", "umt5"), (T5, pair)),
    "switch_transformers": (T5 | {"num_experts": 4, "expert_capacity": 16}, pair),
    **dict.fromkeys(("bart", "mbart", "marian", "blenderbot", "m2m_100"), (PAIRED, pair)),
    "whisper": (
        PAIRED | {"num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 64},
        spectrum,
    ),
    **dict.fromkeys(("vit", "deit", "dinov2", "beit", "ijepa"), (VISION, image)),
    **dict.fromkeys(("swin", "swinv2"), (WINDOWS, image)),
    **dict.fromkeys(("convnext", "convnextv2"), (PYRAMID, photo)),
    "resnet": (STAGES, photo),
    "regnet": (STAGES | {"groups_width": 16}, photo),
    "mobilenet_v2": ({"image_size": 64, "depth_multiplier": 0.25}, photo),
    "segformer": (REDUCED, photo),
    "pvt_v2": (PYRAMID | {"num_attention_heads": [1, 2, 2, 2]}, photo),
    "poolformer": (REDUCED | {"padding": [2, 1]}, photo),
    "timesformer": (FRAMES, video),
    "videomae": (FRAMES, video),
    "clip": (TOWERS, captioned),
    "wav2vec2": (SOUND, wave),
    "hubert": (SOUND, wave),
    "perceiver": (
        {
            "num_latents": 16,
            "d_latents": WIDTH,
            "d_model": 32,
            "num_blocks": 1,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 4,
        },
        latent,
    ),
}


def make(name):
    """A model with random weights and without dropout, and a function of its inputs."""
    from transformers import AutoConfig, AutoModel

    fields, inputs = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **copy.deepcopy(fields))
    config.use_cache = False
    model = AutoModel.from_config(config)
    for module in model.modules():
        for field, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in field or _is_dropout(module, field)):
                setattr(module, field, 0.0)
    return model.eval(), inputs


def _is_dropout(module, field):
    return field == "p" and isinstance(module, torch.nn.modules.dropout._DropoutNd)
