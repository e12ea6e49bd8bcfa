"""Image classification: CIFAR-10, ImageNet folders and synthetic images."""
