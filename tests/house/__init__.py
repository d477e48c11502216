"""Tests of the house itself: floors, packaging, public names, and the code in the README and the docs."""
