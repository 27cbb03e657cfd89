"""Rows from the reader to the device: staging, dequantisation, CUDA graphs, prefetch. Only this part needs torch."""
