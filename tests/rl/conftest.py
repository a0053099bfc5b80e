"""The helpers of this folder are importable by name; torch keeps to one thread for steady numbers."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
