"""How long it takes to encode and decode an upload, beside numpy, torch and FedLab.

    python benchmarks/compression.py           a vector of 20 million numbers, some minutes
    python benchmarks/compression.py --smoke   that it works; its numbers mean nothing

One thread, and the processor's time, so that other programs disturb little. All take turns, and the
best of their turns counts. FedLab is no dependency; to have it in the table::

    pip install --target peers --no-deps fedlab==1.3.0
    python benchmarks/compression.py --peers peers

The bytes of its messages are those of the tensors that its encoders give.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fednag.core.transform import Chain
from fednag.core.vectors import Vectors
from fednag.transforms import Drive, Eden, Entropy, Float16, Quantise, RandK, Sign, TopK

CHAINS = {
    "float16": (Float16(),),
    "quantise, 127 levels (8 bits)": (Quantise(levels=127),),
    "quantise, 7 levels (4 bits)": (Quantise(levels=7),),
    "quantise, 7 levels, buckets of 512": (Quantise(levels=7, bucket=512),),
    "quantise, 7 levels, buckets of 512, entropy": (Quantise(levels=7, bucket=512), Entropy()),
    "sign": (Sign(),),
    "drive (1 bit)": (Drive(),),
    "eden, 4 bits": (Eden(bits=4),),
    "topk, 1 %": (TopK(share=0.01),),
    "randk, 1 %": (RandK(share=0.01),),
}


def chained(name: str, x: Vectors) -> Callable[[], int]:
    chain = Chain(CHAINS[name])
    kept = chain.init(x)

    def go() -> int:
        wire, _, _ = chain.carry(x, kept, np.random.default_rng(1))
        return wire.nbytes

    return go


def numpys(x: torch.Tensor) -> int:
    scale = float(x.abs().max()) / 127
    codes = (x.numpy() / scale).round().astype(np.int8)
    return int((codes.astype(np.float32) * scale).size)


def torchs(x: torch.Tensor) -> int:
    scale = float(x.abs().max()) / 127
    coded = torch.quantize_per_tensor(x, scale, 0, torch.qint8)
    return int(coded.dequantize().numel())


def torchs_largest(x: torch.Tensor) -> int:
    count = len(x) // 100
    places = torch.topk(x.abs(), count).indices
    back = torch.zeros_like(x)
    back[places] = x[places]
    return 12 * count


def fedlabs(x: torch.Tensor) -> dict[str, Callable[[], int]]:
    from fedlab.contrib.compressor import QSGDCompressor, TopkCompressor  # type: ignore

    def sent(tensors: Any) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def qsgd(bits: int) -> int:
        signature = QSGDCompressor(bits).compress(x)
        QSGDCompressor(bits).decompress(signature)
        return sent(signature)

    def topk() -> int:
        values, places = TopkCompressor(0.01).compress(x)
        TopkCompressor(0.01).decompress(values, places, x.shape)
        return sent((values, places))

    return {
        "FedLab: QSGD, 7 bits and sign": lambda: qsgd(7),
        "FedLab: QSGD, 3 bits and sign": lambda: qsgd(3),
        "FedLab: top-k, 1 %": topk,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", default="", help="folder with FedLab")
    given = parser.parse_args()
    sys.path += [given.peers] if given.peers else []
    torch.set_num_threads(1)
    size = 10_000 if given.smoke else 20_000_000
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    jobs: dict[str, Callable[[], int]] = {n: chained(n, Vectors(w=x)) for n in CHAINS}
    jobs |= {
        "numpy: scale, round, int8, back": lambda: numpys(x),
        "torch.quantize_per_tensor, back": lambda: torchs(x),
        "torch.topk, 1 %, back": lambda: torchs_largest(x),
    }
    jobs |= fedlabs(x) if find_spec("fedlab") else {}
    best = dict.fromkeys(jobs, float("inf"))
    sent = {}
    for _ in range(1 if given.smoke else given.turns):
        for name, job in jobs.items():
            began = time.process_time()
            sent[name] = job()
            best[name] = min(best[name], time.process_time() - began)
    print(f"{size:,} numbers, encode and decode, one thread, seconds of the processor\n")
    print("| | seconds | bits a number |")
    print("| --- | --- | --- |")
    for name, seconds in best.items():
        print(f"| {name} | {seconds:.2f} | {8 * sent[name] / size:.2f} |")


if __name__ == "__main__":
    main()
