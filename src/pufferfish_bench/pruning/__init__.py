"""Magnitude masks, channel masks and channel removal for any nn.Module. Usable without the runner: needs only torch.

scales = pruning.scales(model)                                          # |scale| of every BatchNorm2d channel
masks = pruning.at_least_one(pruning.channel_masks(scales, 0.5), scales)
pruning.channels.remove(model, masks)                                   # a smaller dense network, in place

masks = pruning.prune_smallest(weights, masks, 0.2)                     # magnitude pruning, all layers together
"""

from pufferfish_bench.pruning import channels
from pufferfish_bench.pruning.masks import Masks, RecentMasks, at_least_one, channel_masks, distance, prune_smallest, scales

__all__ = ["Masks", "RecentMasks", "at_least_one", "channel_masks", "channels", "distance", "prune_smallest", "scales"]
