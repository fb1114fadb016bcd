"""Readers of real data sets.

`labels` turns labels into class numbers for all of them. `idx` (MNIST's format) and `cifar` read
published files; `npz`, `tables` (CSV) and `images`
(folders) read files of your own; `torch_sets` reads data sets of other libraries.
"""
