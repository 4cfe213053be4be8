"""The three-line swap: an `nn.EmbeddingBag` model, trained on ids that no vocabulary holds.

Example: .venv/bin/python examples/01_drop_in.py
"""

import torch
from torch.nn import Linear, ReLU, Sequential

from monolith.embedding import Adagrad
from monolith.nn import EmbeddingBag  # 1: was torch.nn.EmbeddingBag
from monolith.optim import Optimizer

torch.manual_seed(0)
bag = EmbeddingBag(16, optimizer=Adagrad(0.1))  # 2: was EmbeddingBag(1_000_000, 16)
model = Sequential(bag, Linear(16, 16), ReLU(), Linear(16, 1))
optimizer = Optimizer(model, dense=torch.optim.Adam(model.parameters(), lr=0.01))  # 3: was Adam

people = torch.randint(-(1 << 63), (1 << 63) - 1, (2000,))  # any int64
likes = torch.rand(2000) < 0.5
for step in range(200):
    chosen = torch.randint(0, 10 * (step + 1), (256, 3))  # ever more people turn up
    labels = likes[chosen].float().mean(1, keepdim=True)
    loss = torch.nn.functional.mse_loss(model(people[chosen]), labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if step % 50 == 49:
        print(f"step {step + 1}  loss {loss.item():.3f}  rows {len(bag.table)}")
