"""Figures of the small checkpoint that the tests of this folder share."""

SMALL = 400  # engram_vocab_size: 48 primes from here on, 27,000 rows
TP = 3
