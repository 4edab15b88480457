"""What every backend must get right, by family; small, and awkward where models are."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.backends import suite_families as families
from tests.backends.suite import Case
from tests.backends.suite_inputs import INF, NAN, seeded, t


def visible(lengths, size, left):
    """Which tokens of a padded batch are real."""
    places = torch.arange(size)
    lengths = torch.tensor(lengths)[:, None]
    return places >= size - lengths if left else places < lengths


LEFT, RIGHT = visible([3, 5, 1], 5, True), visible([3, 5, 1], 5, False)
NOTHING = visible([3, 5, 0], 5, True)  # one row of the batch is padding throughout


# ---- attention ---------------------------------------------------------------------------------


class GPT2(nn.Module):
    """GPT-2 for padded batches: each token sees the real ones before it."""

    def __init__(self, vocabulary=20, width=16, heads=2, layers=1):
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(GPT2Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, real):
        places = (real.long().cumsum(-1) - 1).clamp(min=0)
        x = self.tokens(ids) + self.places(places)
        length = ids.shape[1]
        before = torch.ones(length, length, dtype=torch.bool).tril()
        mask = real[:, None, None, :] & before
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x) @ self.tokens.weight.T


class GPT2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        b, n, d = x.shape
        parts = self.qkv(self.first(x)).split(d, -1)
        q, k, v = (p.view(b, n, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class PaddedSelfAttention(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.weights = weights

    def forward(self, x, real):
        return self.attention(x, x, x, key_padding_mask=~real, need_weights=self.weights)


class PaddedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x, real):
        return self.layer(x, src_key_padding_mask=~real)


class PaddedDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x, memory, real):
        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.layer(x, memory, tgt_mask=later, memory_key_padding_mask=~real)


Q, K, V = t(3, 2, 5, 4, seed=1), t(3, 2, 5, 4, seed=2), t(3, 2, 5, 4, seed=3)
IDS = t(3, 5, dtype=torch.int64).abs()


def attend(**kwargs):
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **kwargs)


def added(mask):
    """A boolean mask as one that is added to the scores."""
    return torch.zeros(mask.shape).masked_fill(~mask, -INF)


ATTENTION = {
    "plain": Case(attend(), (Q, K, V)),
    "causal": Case(attend(is_causal=True), (Q, K, V)),
    "causal_unequal": Case(attend(is_causal=True), (Q, K[:, :, :3], V[:, :, :3])),
    "scaled": Case(attend(scale=0.25), (Q, K, V)),
    "three_dimensions": Case(attend(), (Q[0], K[0], V[0], RIGHT[0].expand(5, 5))),
    "grouped": Case(attend(enable_gqa=True), (t(3, 4, 5, 4), K, V)),
    "masked_left": Case(attend(), (Q, K, V, LEFT[:, None, None])),
    "masked_causal_left": Case(
        attend(), (Q, K, V, LEFT[:, None, None] & torch.ones(5, 5, dtype=torch.bool).tril())
    ),
    "masked_wholly": Case(attend(), (Q, K, V, NOTHING[:, None, None].expand(3, 1, 5, 5))),
    "added_wholly": Case(attend(), (Q, K, V, added(NOTHING)[:, None, None].expand(3, 2, 5, 5))),
    "masked_everywhere": Case(attend(), (Q, K, V, torch.zeros(5, 5, dtype=torch.bool))),
    "masked_nan": Case(attend(), (Q, K.index_fill(2, torch.tensor([4]), NAN), V, RIGHT[:1])),
    "heads_masked": Case(attend(), (Q, K, V, t(3, 2, 5, 5, dtype=torch.bool))),
    "no_keys": Case(attend(), (Q, K[:, :, :0], V[:, :, :0])),
    "safe_softmax": Case(
        lambda x: torch.ops.aten._safe_softmax(x, -1), (added(NOTHING) + t(3, 5),)
    ),
    "softmax_of_masked_rows": Case(lambda x: x.softmax(-1), (added(NOTHING) + t(3, 5),)),
    "log_softmax_of_masked_rows": Case(lambda x: x.log_softmax(-1), (added(NOTHING) + t(3, 5),)),
    "masked_fill_softmax": Case(
        lambda x, m: x.masked_fill(~m, -INF).softmax(-1).nan_to_num(0.0), (t(3, 5), NOTHING)
    ),
    "multihead": Case(seeded(lambda: PaddedSelfAttention(False)), (t(3, 5, 8), LEFT)),
    "multihead_wholly": Case(seeded(lambda: PaddedSelfAttention(False)), (t(3, 5, 8), NOTHING)),
    "multihead_weights": Case(seeded(lambda: PaddedSelfAttention(True)), (t(3, 5, 8), NOTHING)),
    "encoder": Case(seeded(PaddedEncoder), (t(3, 5, 8), RIGHT)),
    "encoder_wholly": Case(seeded(PaddedEncoder), (t(3, 5, 8), NOTHING)),
    "encoder_evaluated": Case(seeded(PaddedEncoder).eval(), (t(3, 5, 8), NOTHING)),
    "decoder": Case(seeded(PaddedDecoder), (t(3, 4, 8), t(3, 5, 8), NOTHING)),
    "gpt2_left": Case(seeded(GPT2), (IDS, LEFT)),
    "gpt2_right": Case(seeded(GPT2), (IDS, RIGHT)),
    "gpt2_nothing": Case(seeded(GPT2), (IDS, NOTHING)),
}


# ---- constants and state -----------------------------------------------------------------------


class Held(nn.Module):
    """A constant with given strides, used in a product and returned."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x):
        return x @ self.weight, self.weight + 1


class Expanded(nn.Module):
    """A parameter that is read through an expanded view."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(t(1, 8))

    def forward(self, x):
        return x @ self.weight.expand(4, 8).T, self.weight.expand(4, 8)


class Counts(nn.Module):
    """State with given strides, written at every call."""

    def __init__(self, total):
        super().__init__()
        self.register_buffer("total", total)

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2, self.total.T


CONSTANTS = {
    "expanded_parameter": Case(Expanded(), (t(3, 8),)),
    "expanded": Case(Held(t(8, 1).expand(8, 4)), (t(3, 8),)),
    "expanded_twice": Case(Held(t(1, 1).expand(8, 4)), (t(3, 8),)),
    "transposed": Case(Held(t(4, 8).T), (t(3, 8),)),
    "sliced": Case(Held(t(16, 9)[::2, 1:5]), (t(3, 8),)),
    "overlapping": Case(Held(t(16).as_strided((8, 4), (1, 2))), (t(3, 8),)),
    "empty": Case(Held(t(8, 0)), (t(3, 8),)),
    "state_transposed": Case(Counts(t(4, 8).T.clone()), (t(8, 4),)),
    "state_sliced": Case(Counts(t(16, 9)[::2, 1:5]), (t(8, 4),)),
    "one_number": Case(Held(torch.tensor(2.5).expand(8, 4)), (t(3, 8),)),
    "conjugate": Case(
        lambda x: torch.view_as_real(x * torch.tensor([1 + 2j, 3 - 1j]).conj()),
        (t(2, dtype=torch.complex64),),
        grad=False,
    ),
}

FAMILIES = {
    "attention": ATTENTION,
    "constants": CONSTANTS,
    "pointwise": families.POINTWISE,
    "integers": families.INTEGERS,
    "reductions": families.REDUCTIONS,
    "shapes": families.SHAPES,
    "indexing": families.INDEXING,
    "products": families.PRODUCTS,
    "convolutions": families.CONVOLUTIONS,
    "norms": families.NORMS,
    "writes": families.WRITES,
    "models": families.MODELS,
}
# What ``make test`` runs, as one program for each backend.
QUICK = {
    "attention": "masked_wholly added_wholly grouped multihead_wholly gpt2_left",
    "constants": "expanded_parameter expanded sliced overlapping state_sliced",
    "pointwise": "special_pairs clamps where_and_fill",
    "integers": "division booleans",
    "reductions": "odd_rows no_columns a_number",
    "shapes": "returned_views rolled_channels_last zero_size",
    "indexing": "gathered embedding losses",
    "products": "nan_bias_unused empty_inner",
    "convolutions": "pooled_nan network",
    "norms": "instance_of_constant layer_of_odd_rows",
    "writes": "own buffer_and_input",
}


def quick() -> list[Case]:
    """The cases of ``QUICK``."""
    return [FAMILIES[family][name] for family, names in QUICK.items() for name in names.split()]
