"""The command line: parse options, call the API and render results, without logic of its own."""
