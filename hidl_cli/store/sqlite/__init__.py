"""The SQLite file: tables, locks, reading and writing rows."""
