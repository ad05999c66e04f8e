"""Transformers over token ids: Encoder, Decoder, EncoderDecoder, and the parts they are made of."""
