"""Models of images, image patches, image and text, and of denoising."""

import torch
from found import code

import querykey as qk

VIT = {"image_size": 32, "patch_size": 8, "num_classes": 7, "dim": 32, "heads": 4, "mlp_dim": 48}


def _seeing(model, size=32):
    return qk.Subject(model, example=torch.randn(2, 3, size, size))


def _vit(module, name, **sizes):
    model = getattr(code("vit-pytorch", f"vit_pytorch.{module}", without="torchvision"), name)
    return _seeing(model(**sizes))


def vit():
    return _vit("vit", "ViT", **VIT, depth=2, dim_head=8)


def simple_vit():
    return _vit("simple_vit", "SimpleViT", **VIT, depth=2, dim_head=8)


def vit_1d():
    sizes = {"seq_len": 32, "patch_size": 4, "num_classes": 7, "dim": 32, "heads": 4, "mlp_dim": 48}
    model = _vit("vit_1d", "ViT", **sizes, depth=2, dim_head=8).forward
    return qk.Subject(model, example=torch.randn(2, 3, 32))


def cait():
    return _vit("cait", "CaiT", **VIT, depth=2, cls_depth=1, dim_head=8)


def deep_vit():
    return _vit("deepvit", "DeepViT", **VIT, depth=2, dim_head=8)


def cct():
    return _vit(
        "cct",
        "CCT",
        img_size=32,
        embedding_dim=32,
        n_conv_layers=1,
        kernel_size=7,
        stride=2,
        padding=3,
        pooling_kernel_size=3,
        pooling_stride=2,
        pooling_padding=1,
        num_layers=2,
        num_heads=4,
        mlp_ratio=2.0,
        num_classes=7,
    )


def vit_memory():
    m = code("vit-pytorch", "vit_pytorch.vit_with_patch_merger", without="torchvision")
    return _seeing(m.ViT(**VIT, depth=4, dim_head=8, patch_merge_num_tokens=4))


def parallel_vit():
    return _vit("parallel_vit", "ViT", **VIT, depth=2, dim_head=8, num_parallel_branches=2)


def cross_former():
    return _vit(
        "crossformer",
        "CrossFormer",
        num_classes=7,
        dim=(32, 32, 64, 64),
        depth=(1, 1, 1, 1),
        global_window_size=(4, 2, 2, 2),
        local_window_size=(4, 2, 2, 2),
        cross_embed_strides=(2, 2, 1, 1),
        cross_embed_kernel_sizes=((2, 4), (2, 4), (3, 5), (3, 5)),
    )


def _timm(name, size=32, **more):
    model = code("timm", "timm", without="torchvision").create_model(name, num_classes=7, **more)
    return _seeing(model, size)


def timm_vit():
    return _timm(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4
    )


def timm_swin():
    return _timm(
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=4,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 4),
    )


def timm_mixer():
    m = code("timm", "timm.models.mlp_mixer", without="torchvision")
    return _seeing(m.MlpMixer(7, img_size=32, patch_size=8, num_blocks=2, embed_dim=32))


def timm_xcit():
    return _timm("xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=4)


def timm_eva():
    return _timm(
        "eva02_tiny_patch14_224", 28, img_size=28, patch_size=7, embed_dim=32, depth=2, num_heads=4
    )


def timm_convnext():
    return _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))


def mae():
    m = code("facebookresearch/mae", "models_mae", beside="timm", without="torchvision")
    model = m.MaskedAutoencoderViT(32, 8, 3, 32, 2, 4, 16, 1, 4)

    def forward(images):
        return model.forward_encoder(images, 0.0)[0]

    return qk.Subject(forward, example=torch.randn(2, 3, 32, 32))


def clip():
    m = code("openai/CLIP", "clip.model", without="torchvision ftfy")
    model = m.CLIP(32, 32, 2, 64, 8, 16, 61, 64, 4, 2)
    ids = torch.randint(1, 61, (2, 16))
    return qk.Subject(model.encode_text, example=ids)


def open_clip_text():
    m = code("open_clip_torch", "open_clip.transformer", without="torchvision ftfy")
    return m.TextTransformer(
        context_length=16, vocab_size=61, width=32, heads=4, layers=2, output_dim=32
    )


def unet():
    m = code("segmentation-models-pytorch", "segmentation_models_pytorch", without="torchvision")
    return _seeing(m.Unet("resnet18", encoder_weights=None, classes=2))


def detr():
    import importlib.util

    from found import folder

    file = folder("facebookresearch/detr") / "models" / "transformer.py"
    spec = importlib.util.spec_from_file_location("detr_transformer", file)
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    model = m.Transformer(32, 4, 2, 2, 64, return_intermediate_dec=True)
    queries = torch.randn(5, 32)

    def forward(image, positions):
        mask = torch.zeros(image.shape[0], 4, 4, dtype=torch.bool)
        return model(image, mask, queries, positions)[0][-1]

    return qk.Subject(forward, example=(torch.randn(2, 32, 4, 4), torch.randn(2, 32, 4, 4)))


def dit():
    m = code("facebookresearch/DiT", "models", beside="timm", without="torchvision")
    model = m.DiT(
        input_size=8,
        patch_size=2,
        in_channels=4,
        hidden_size=32,
        depth=2,
        num_heads=4,
        num_classes=7,
    )
    return qk.Subject(
        model,
        example={
            "x": torch.randn(2, 4, 8, 8),
            "t": torch.tensor([3, 500]),
            "y": torch.tensor([1, 4]),
        },
    )


def uvit():
    m = code("baofff/U-ViT", "libs.uvit", beside="timm", without="torchvision")
    model = m.UViT(img_size=16, patch_size=4, in_chans=3, embed_dim=32, depth=2, num_heads=4)
    return qk.Subject(
        model, example={"x": torch.randn(2, 3, 16, 16), "timesteps": torch.tensor([3.0, 500.0])}
    )


def linear_vit():
    m = code(
        "lukemelas/do-you-even-need-attention",
        "vision_transformer_linear",
        beside="timm",
        without="torchvision",
    )
    model = m.LinearVisionTransformer(
        patch_size=16, num_classes=7, embed_dim=32, depth=2, num_heads=4
    )
    return _seeing(model, 224)
