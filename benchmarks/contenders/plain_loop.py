"""FedNAG as a plain PyTorch loop: one worker after the other, DataLoader and torch.optim."""

from __future__ import annotations

import torch
from turnstile import Turnstile
from workload import Work, local_nag


def main() -> None:
    work, turnstile = Work.given(), Turnstile()
    torch.set_num_threads(work.threads)
    model = work.module()
    called = torch.compile(model) if work.compiled else None
    batches = [work.batches(worker) for worker in range(work.workers)]
    weights, momenta = [p.detach().clone() for p in model.parameters()], None
    going = True
    while going:
        results = [local_nag(model, weights, momenta, mine, work.tau, called) for mine in batches]
        weights = [
            torch.stack(values).mean(0) for values in zip(*(r[0] for r in results), strict=True)
        ]
        momenta = [
            torch.stack(values).mean(0) for values in zip(*(r[1] for r in results), strict=True)
        ]
        going = turnstile.passed()


if __name__ == "__main__":
    main()
