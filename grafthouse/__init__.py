"""The command line of a Grafthouse: for people who live in a terminal, and for CI."""
