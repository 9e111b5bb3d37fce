"""One torch thread: beside other work, two of them wait for each other at every small operation."""

import torch

torch.set_num_threads(1)
