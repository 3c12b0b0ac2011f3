"""Sites: schema, loading, detection."""
