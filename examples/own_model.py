"""Your own model and tensors: FedNAG beside FedAvg on workers with different class mixes."""

import torch
from torch import nn

import fednag

torch.manual_seed(0)
x = torch.randn(1200, 20)
y = (x[:, :3].prod(1) > 0).long() + 2 * (x[:, 3] > 0).long()  # four classes, not linear
train, test = slice(0, 1000), slice(1000, None)

model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 4))

result = fednag.compare(
    [fednag.FedNAG(lr=0.05, momentum=0.9), fednag.FedAvg(lr=0.05)],
    model=model,
    data=(x[train], y[train]),
    test=(x[test], y[test]),
    workers=5,
    tau=10,
    iterations=300,
    split={"kind": "dirichlet", "alpha": 0.5},
)
print(result)

best = result["fednag"].best  # an nn.Module with the weights of least global loss
print("first predictions:", best(x[test])[:5].argmax(1).tolist(), "truth:", y[test][:5].tolist())
