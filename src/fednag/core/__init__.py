"""The parts of a training round and the loop that joins them. It knows no models and no data."""
