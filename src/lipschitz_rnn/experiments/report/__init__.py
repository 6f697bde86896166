"""From run folders to one page of results, as Markdown and as one self-contained HTML file."""

from lipschitz_rnn.experiments.report.build import write_report as write_report
