"""What everything else stands on: errors, the user's line, dtypes, pytrees."""
