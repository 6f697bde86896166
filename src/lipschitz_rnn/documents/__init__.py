"""Pages of headings, text, tables and pictures: written as Markdown or HTML, and checked against what is committed."""
