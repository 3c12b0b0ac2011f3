"""Find which of several changes explains a slowdown, from interleaved runs with some of them: pure functions."""
