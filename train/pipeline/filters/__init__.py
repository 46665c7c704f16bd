"""What the filter stage removes: near duplicates and personal data."""
