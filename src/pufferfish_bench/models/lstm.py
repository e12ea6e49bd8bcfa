"""The paper's LSTM language model: tied embedding, two layers, dropout between all layers. Independent of factorisation."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.base.ranges import Count, Decay
from pufferfish_bench.lowrank.lstm import LSTM, State, gate_matrices

LOGITS = 2**23  # computed at a time on a CPU; each part adds a gradient of the size of the decoder, so few large parts are faster


class LanguageModel(nn.Module):
    """Maps words to logits of the next words, and returns the final state of each layer."""

    def __init__(self, *, vocabulary: Count, hidden: Count, layers: Count, dropout: Decay):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.ModuleList(LSTM(hidden, hidden) for _ in range(layers))
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(hidden, vocabulary)
        self.decoder.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.lstm.apply(self.initialise)

    @staticmethod
    def initialise(layer: nn.Module) -> None:
        """Xavier for each gate's matrices or their factors; biases stay zero."""
        for matrix in gate_matrices(layer).values():
            nn.init.xavier_uniform_(matrix)

    def forward(
        self, words: Tensor, states: Sequence[State] | None = None, following: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """For words (time, batch): logits (time, batch, vocabulary) and a state for each layer; None starts from zeros.

        If `following` holds the next words, returns the cross-entropy of each (time * batch) instead of the logits.
        """
        x = self.drop(self.embedding(words))
        zero = x.new_zeros(x.shape[1], x.shape[2])
        ends = []
        for number, layer in enumerate(self.lstm):
            x, end = layer(x, states[number] if states else (zero, zero))
            x = self.drop(x)
            ends.append(end)
        return (self.decoder(x) if following is None else self.losses(x.flatten(0, 1), following.flatten())), ends

    def losses(self, x: Tensor, following: Tensor) -> Tensor:
        """The cross-entropy of each following word. On a CPU a few words at a time: allocating memory for all logits at every
        step would take longer than computing them."""
        few = len(x) if x.is_cuda else max(1, LOGITS // self.decoder.out_features)
        parts = zip(x.split(few), following.split(few), strict=True)
        return torch.cat([F.cross_entropy(self.decoder(part).float(), words, reduction="none") for part, words in parts])
