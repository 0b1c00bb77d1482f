"""The network: rewrites descriptors so that partners become nearest neighbours; it does not match."""
