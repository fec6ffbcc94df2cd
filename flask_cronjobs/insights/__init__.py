"""What people are shown, and what they may change."""
