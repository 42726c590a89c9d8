"""The `expresslane` command."""
