"""Stands for torchaudio, which LLaMA-Factory imports and uses for sound alone: its wheels need a GPU's libraries."""
