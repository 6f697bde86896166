"""Pages of studies, made from their records: sections that any study can use, and the committed pages."""
