"""Building blocks for memory policies: growth, physical chunks, page tables, radix tree."""
