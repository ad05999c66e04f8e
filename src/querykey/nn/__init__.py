"""torch.nn modules: MultiHeadAttention, MLP, and the blocks that are made of them.

block = Block(BlockConfig.preset("pre-norm", width=64, heads=4), mask=Causal())
block(x)  # (batch, tokens, 64) -> (batch, tokens, 64)
"""

from querykey.nn.attention import MultiHeadAttention
from querykey.nn.block import Block
from querykey.nn.config import AttentionConfig, BlockConfig, MLPConfig, NormConfig
from querykey.nn.mlp import MLP

__all__ = [
    "MLP",
    "AttentionConfig",
    "Block",
    "BlockConfig",
    "MLPConfig",
    "MultiHeadAttention",
    "NormConfig",
]
