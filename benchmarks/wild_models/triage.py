"""What was found by reading the code behind every violation: a place, and why."""

import fnmatch

# (models, laws, where in the package or repository, why). FALSE: the code is right.
CAUSES = [
    ("performer_causal", "causality.*", "performer_pytorch.py:113",
     "the keys are scaled by their largest value, later keys too, before eps is added"),
    ("routing", "*", "routing_transformer.py:306",
     "a token's cluster is chosen among all tokens; the means come from the first call"),
    ("reformer", "determinism", "reformer_pytorch.py:237", "hashes are drawn anew in evaluation"),
    ("slot_attention", "determinism", "slot_attention.py:61", "slots are drawn anew in evaluation"),
    ("informer_library", "determinism", "layers/SelfAttention_Family.py, ProbAttention",
     "the keys by which queries are chosen are drawn anew in evaluation"),
    ("local_attention", "cache.*", "local_attention/transformer.py:168",
     "keys are kept after their rotation, and rotated again at the next token"),
    ("ch04_kv_cache_optimized", "cache.*",
     "ch04/03_kv-cache/gpt_with_kv_cache_optimized.py:72",
     "with kv_window_size the cache drops older keys, in the middle of a chunk too; one call sees "
     "all of them"),
    ("nystromformer", "padding.right", "nystrom_attention.py:71",
     "landmarks are means over segments, whose borders move with the padded length"),
    ("nystromformer", "*", "nystrom_attention.py:19",
     "the inverse begins with the largest sum of all rows and heads, not of its own"),
    ("h_transformer_causal", "causality.prefix", "h_transformer_1d.py:441",
     "at one block or less the number of levels is -1, the mask empty, and the answer zero"),
    ("h_transformer_causal", "padding.left", "h_transformer_1d.py:316",
     "the causal layer takes the mask among its keywords and does not use it"),
    ("native_sparse", "cache.step", "native_sparse_attention.py:404",
     "with no block kept yet a step leaves out the memory keys that one call attends to"),
    ("agent_attention", "gradient.reaches", "agent_transformer.py",
     "the last layer computes agent tokens that nothing reads"),
    ("st_moe", "*", "st_moe_pytorch.py:461",
     "experts are chosen by random numbers in evaluation, so other shapes get other experts"),
    ("another_retnet", "dtype.agree", "yet_another_retnet/retention.py:382",
     "positions are counted in the dtype of the queries, and bfloat16 holds few whole numbers"),
    ("omninet_causal", "purity", "omninet_pytorch.py:218",
     "positions are added to the input in place"),
    ("tranception", "padding.left", "tranception_pytorch.py:86",
     "the mask is not applied before the convolutions, which read padding"),
    ("ring_attention", "padding.left", "ring_attention.py:86",
     "`elif`: where attention is causal the padding mask is not used"),
    ("x_shift", "padding.left", "x_transformers.py:1591",
     "shifted features come from padding at the first real token"),
    ("conv_tasnet", "gradient.reaches", "asteroid/masknn/convolutional.py",
     "the last block computes a residual that nothing reads beside its skip connection"),
    ("times_net", "*", "models/TimesNet.py:12", "periods are chosen by the mean over the batch"),
    ("hopfield", "masked-row", "hflayers/functional.py",
     "softmax over scores of which all are minus infinity"),
    ("timm_xcit", "accumulation", "torch",
     "torch's own gradient of a single row is wrong here: that of the batch agrees with finite "
     "differences, with and without our copies"),
    ("linear_vit", "accumulation", "torch",
     "of a single row torch gives cls_token and cls_pos_embed one gradient in one memory "
     "(vision_transformer_linear.py:154, :156), and a second backward adds to it twice"),
    ("fedformer", "gradient.reaches", "layers/FourierCorrelation.py:65",
     "keys and values are projected, and the block reads the queries alone"),
    ("crossformer", "gradient.reaches", "layers/SelfAttention_Family.py:194",
     "16 values are one segment in the last layer: a softmax over one key passes no gradient"),
    ("hopfield", "padding.right", "FALSE",
     "its own function of attention asks torch who overrides it, so its dropout was not still"),
    ("recurrent_memory", "dtype.agree", "recurrent_memory_transformer.py:428",
     "positions begin at 10000, and float32 rounds the angles of such positions to 1e-3"),
    ("feedback", "cache.*", "feedback_transformer_pytorch.py:262",
     "segments begin where a chunk begins, and the memory is written at the end of each: fed in "
     "other chunks than of seq_len tokens it holds other things"),
    ("x_rotary", "dtype.agree", "x_transformers.py:879",
     "positions are cast to the dtype of inv_freq, which a model that is cast to bfloat16 rounds"),
    ("torchscale_decoder", "masked-row", "torchscale/component/multihead_attention.py:134",
     "all scores of a row that is all padding are minus infinity, and softmax follows"),
]  # fmt: skip


def cause(model: str, law: str) -> tuple[str, str]:
    """Return where a violation comes from and why, or that it was not read yet."""
    for models, laws, where, why in CAUSES:
        if model in models.split() and fnmatch.fnmatchcase(law, laws):
            return where, why
    return "", "not read yet"
