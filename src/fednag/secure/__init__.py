"""Secure aggregation: a server learns the sum of vectors, and of each vector nothing more.

The protocol of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine
Learning" (2017), in four steps: keys are advertised, shares of secrets are dealt, masked vectors
are sent, and the masks are taken off their sum. ``Member`` is a silo's side, ``Collector`` the
server's; they exchange bytes and know nothing of networks.
"""
