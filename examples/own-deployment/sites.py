"""Makes a folder of data for each of three sites, a third of the digits each: python sites.py"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
for site in range(3):
    folder = Path(f"sites/site-{site}")
    folder.mkdir(parents=True)
    mine, own = x[site::3], y[site::3]
    np.save(folder / "x.npy", mine[:500])
    np.save(folder / "y.npy", own[:500])
    np.save(folder / "test_x.npy", mine[500:])
    np.save(folder / "test_y.npy", own[500:])
