"""The app's own model and data."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)


def make_loader(part: int, parts: int) -> DataLoader:
    x, y = digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(part))
    mine = order[order % parts == part]
    return DataLoader(TensorDataset(x[mine], y[mine]), batch_size=32)
