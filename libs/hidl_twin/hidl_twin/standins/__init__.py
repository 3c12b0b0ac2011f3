"""Stand-ins for programs that a twin cannot have: standalone, standard library only."""
