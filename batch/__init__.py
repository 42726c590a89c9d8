"""Files and batches: OpenAI's batch API, whose lines run as P2 through the ingress like any other request.

One owner in the cluster keeps them (`deployment`), in one database (`database`, `tables`, `files`, `batches`), and runs
them (`runner`, by the rules in `policy`). It never meets an engine: it hands each line to an ingress process.
"""
