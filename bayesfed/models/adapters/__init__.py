"""Low-rank adapters (LoRA) over frozen weights: layers, sketches of their slices, priors and a
guide, and files that `peft` reads.

Lowest first: `lora_layers` and `sketching`; `lora` (networks with adapters, and back);
`adapter_prior` and `slice_normal`; `peft_saving`; `peft_loading`.
"""
