"""The parts of the report. Each has `measure(suite, number)`, which does round `number` of what is
not stored yet, and `show(results)`, which returns Markdown and plots by file name."""
