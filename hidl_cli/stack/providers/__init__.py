"""How a stack is installed; one module a provider."""
