"""What networks cost: exact counts, measured tables, calibration."""
