"""Figures of measurements, benchmarks and studies, drawn with matplotlib in one style."""
