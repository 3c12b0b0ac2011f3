"""Sites: schema, loading, detection and drafting."""
