"""From journals to DataFrames and back: loading, columns, ranking, files."""
