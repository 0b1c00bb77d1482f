"""From descriptors to matches: pure functions on tensors, without parameters."""
