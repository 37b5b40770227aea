"""Federated learning on real machines: fednag on Flower. The only room that imports flwr."""
