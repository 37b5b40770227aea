"""A small Flower app, trained with FedNAG."""
