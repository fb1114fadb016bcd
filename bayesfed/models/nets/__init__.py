"""Reference networks, initialised from a key.

Lowest first: `building_blocks` (initialisation, widths, grey images) and `norms`; then `sequential`
(mlp, cnn, AlexNet, MobileNet), `vgg`, `resnet` and `text` (a classifier on a pretrained encoder),
which do not import each other.
"""
