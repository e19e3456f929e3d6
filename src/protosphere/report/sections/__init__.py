"""The sections of a report, one file per section: report data in, content out."""
