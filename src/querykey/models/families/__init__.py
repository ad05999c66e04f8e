"""The families of Hugging Face folders that we read and write, one file and one table each."""

from querykey.models.families.bert import BERT, ROBERTA
from querykey.models.families.gpt2 import GPT2
from querykey.models.families.llama import LLAMA, MISTRAL, QWEN2
from querykey.models.families.t5 import T5
from querykey.models.families.table import Family
from querykey.models.families.vit import VIT

FAMILIES: tuple[Family, ...] = (GPT2, LLAMA, MISTRAL, QWEN2, BERT, ROBERTA, T5, VIT)
