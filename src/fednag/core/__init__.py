"""A round as values: vectors, algorithms, what travels, the loop. It knows no models, no data."""
