"""Who proposes tuning trials."""
