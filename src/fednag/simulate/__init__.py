"""The executor on this machine: workers stacked, spread over threads, evaluated."""
