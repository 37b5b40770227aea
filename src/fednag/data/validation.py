"""A part of the training samples, cut off so that choices need not be made on test samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fednag.data.dataset import Dataset
from fednag.errors import FednagError

CUT = 19  # the stream of this draw
FIELD = "data.validation"


def cut(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The data set with a share of its training samples in the place of the test samples.

    The share is taken of each class, drawn with the seed; an owner keeps at least one sample. The
    test samples are held back.

    >>> import torch
    >>> from fednag.data.dataset import dataset_of
    >>> x, y = torch.arange(20.0).view(20, 1), torch.arange(20) % 2
    >>> mine = cut(dataset_of("mine", x, y, (x[:3] + 100, y[:3]), None, None), 0.2, seed=0)
    >>> len(mine.x), sorted(mine.test_y.tolist()), mine.held_back[0].flatten().tolist()
    (16, [0, 0, 1, 1], [100.0, 101.0, 102.0])
    """
    dataset.check()
    count = len(dataset.x)
    order = np.random.default_rng([seed, CUT]).permutation(count)
    if dataset.classes is not None:
        order = order[np.argsort(dataset.y.numpy()[order], kind="stable")]
    # Sample k of the ordered ones is cut off where k times the share passes a whole number.
    is_cut = np.zeros(count, dtype=bool)
    is_cut[order] = np.diff(np.floor(np.arange(1, count + 1) * share), prepend=0) > 0
    if dataset.owners is not None:
        _keep_owners(dataset.owners.numpy(), is_cut)
    if not is_cut.any():
        raise FednagError(FIELD, f"{share:g} of {count} samples is none", "raise it")
    left, off = torch.from_numpy(~is_cut), torch.from_numpy(is_cut)
    if not left.any():
        raise FednagError(FIELD, f"{share:g} leaves no sample for training", "lower it")
    told = f"validation: accuracies and test losses are on {int(off.sum())} samples cut from the "
    return replace(
        dataset,
        x=dataset.x[left],
        y=dataset.y[left],
        test_x=dataset.x[off],
        test_y=dataset.y[off],
        owners=None if dataset.owners is None else dataset.owners[left],
        held_back=(dataset.test_x, dataset.test_y),
        columns={name: column[~is_cut] for name, column in dataset.columns.items()},
        remarks=(*dataset.remarks, f"{told}{count} for training"),
    )


def _keep_owners(owners: NDArray[np.int64], is_cut: NDArray[np.bool_]) -> None:
    """Give owners who would be left with nothing one sample back: who trains must not change."""
    lost = np.setdiff1d(owners, owners[~is_cut])
    names, first = np.unique(owners, return_index=True)
    is_cut[first[np.isin(names, lost)]] = False
