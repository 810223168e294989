"""How a grid is planned and executed."""
