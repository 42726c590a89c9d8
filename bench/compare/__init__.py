"""The same load on several servers, one after another, and what of it was claimed."""
