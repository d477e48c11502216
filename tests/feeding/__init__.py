"""What tests of consumers are fed with: a partition's frames as its owner would write them, and a link without a network."""
