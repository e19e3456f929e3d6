"""Reports: run folders and files of studies in, one HTML page out. Nothing here imports torch."""
