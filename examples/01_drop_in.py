"""The swap: three lines of a plain torch program change, and any int64 is an id.

Example: .venv/bin/python examples/01_drop_in.py
"""

import torch

import monolith  # 1: new

random = torch.Generator().manual_seed(0)
torch.manual_seed(0)

# 2: was torch.nn.EmbeddingBag(1_000_000, 16, mode="sum")
bag = monolith.nn.EmbeddingBag(16, mode="sum", optimizer=monolith.table.optimizers.Adagrad(0.1))
model = torch.nn.Sequential(bag, torch.nn.Linear(16, 1))
# 3: was torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = monolith.optim.Optimizer(model, dense=torch.optim.Adam(model.parameters(), lr=0.01))


def new_ids(num: int) -> torch.Tensor:
    """Ids as a log has them: hashes, in all of int64."""
    return torch.randint(-(1 << 63), (1 << 63) - 1, (num,), generator=random)


known = new_ids(500)
for step in range(301):
    known = torch.cat([known[5:], new_ids(5)])  # five ids retire, five have never been seen
    ids = known[torch.randint(len(known), (256, 3), generator=random)]  # three in each bag
    labels = ((ids > 0).sum(1) >= 2).float()  # what is to be learned: most of them are positive
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids).squeeze(1), labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step:3}  loss {loss.item():.4f}  {len(bag.table):5,} rows")

model.eval()
print("ids never seen read as zeros in eval mode:", not bag(new_ids(8).view(4, 2)).any())
print("Next: docs/demo.md, or examples/demo.py --memory 4 1 0.25")
