"""The families of Hugging Face folders that we read and write, each with its table of names."""

from querykey.models.folders.families.bert import BERT, ROBERTA
from querykey.models.folders.families.family import Family
from querykey.models.folders.families.gpt2 import GPT2
from querykey.models.folders.families.llama import LLAMA, MISTRAL, QWEN2
from querykey.models.folders.families.t5 import T5
from querykey.models.folders.families.vit import VIT

FAMILIES: tuple[Family, ...] = (GPT2, LLAMA, MISTRAL, QWEN2, BERT, ROBERTA, T5, VIT)
