"""torch.nn modules: MultiHeadAttention, MLP, and the blocks that are made of them.

block = Block(BlockConfig.preset("pre-norm", width=64, heads=4), mask=Causal())
block(x)  # (batch, tokens, 64) -> (batch, tokens, 64)
"""

from querykey.nn.attention import (
    MultiHeadAttention,
    Turns,
    document_positions,
    token_positions,
)
from querykey.nn.block import Block, SourceMemory
from querykey.nn.config import (
    ACTIVATIONS,
    AttentionConfig,
    BlockConfig,
    MLPConfig,
    NormConfig,
    among,
)
from querykey.nn.mlp import MLP, activate
from querykey.nn.norms import make_norm
from querykey.nn.tensors import check_floats, check_generator, check_meets, check_whole, is_watched

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "AttentionConfig",
    "Block",
    "BlockConfig",
    "MLPConfig",
    "MultiHeadAttention",
    "NormConfig",
    "SourceMemory",
    "Turns",
    "activate",
    "among",
    "check_floats",
    "check_generator",
    "check_meets",
    "check_whole",
    "document_positions",
    "is_watched",
    "make_norm",
    "token_positions",
]
