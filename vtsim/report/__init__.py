"""Results for people: tables and explanations. Reads results, computes no metric of its own."""
