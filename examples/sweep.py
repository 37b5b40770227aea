"""Which tau suits which momentum: a grid over two fields and three seeds, mean and spread."""

import fednag

result = fednag.sweep(
    {"training.tau": [5, 20], "algorithm.momentum": [0.0, 0.5, 0.9]},
    seeds=[0, 1, 2],
    data={"name": "digits"},
    split={"kind": "classes", "classes": 3, "workers": 4},
    model={"name": "logistic"},
    algorithm={"name": "fednag", "lr": 0.05},
    training={"iterations": 100},
)
print(result)
