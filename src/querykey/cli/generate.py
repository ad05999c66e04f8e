"""The verb `qk generate`: a prompt continued by the model of a folder."""

from __future__ import annotations

from querykey.cli.output import refuse, status


def generate(
    folder: str,
    /,
    *,
    prompt: str,
    tokens: int = 100,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> int:
    """Continue a prompt with the model of a folder, token by token.

    Parameters
    ----------
    folder
        A folder with config.json and safetensors. Its tokenizer.json reads the prompt; without one,
        tokens are bytes.
    prompt
        The text to continue.
    tokens
        Stop after this many new tokens.
    temperature
        Divide the scores by this before a token is drawn. Without it, top-k and top-p, the
        likeliest token is taken.
    top_k
        Draw among this many of the likeliest tokens.
    top_p
        Draw among the fewest tokens that together have this probability.
    seed
        Draw the same tokens as another call with this seed.
    """
    with status(f"loading {folder}"):
        from querykey.models import Speaker
    printed = False
    try:
        with status(f"loading {folder}"):
            speaker = Speaker.of(folder)
        for piece in speaker.say(prompt, tokens, temperature, top_k, top_p, seed):
            print(piece, end="", flush=True)
            printed = True
        print()
    except ValueError as error:
        if printed:  # the refusal is no part of the text
            print(flush=True)
        return refuse(" ".join(str(error).split()))
    return 0
