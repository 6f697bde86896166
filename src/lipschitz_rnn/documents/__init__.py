"""Pages of headings, text, tables and pictures: written as Markdown or HTML, and compared with the committed files."""
