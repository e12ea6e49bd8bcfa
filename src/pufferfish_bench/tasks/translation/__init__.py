"""Translation: Multi30k and synthetic sentence pairs, beam search and BLEU."""
