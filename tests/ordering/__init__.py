"""What tests of delivery order share: links that delay, writers that say what they had read, and the truth about both."""
