"""Sites: their schema, and how they are loaded, detected and drafted."""
