"""The papers' tables and figures, and scalability studies: many runs, compared."""
