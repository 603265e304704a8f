"""What a model is fed and what is kept of it: the texts, and what is captured while they run."""
