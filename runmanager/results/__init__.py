"""What journals hold, as tables: loading, comparing, writing, removing."""
