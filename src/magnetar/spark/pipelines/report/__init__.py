"""The audit as one HTML file: figures in, text out; no Spark, no script, nothing from the network.

Plots are SVG made here. Colours are variables of style.css, so that the plots follow the reader's light or dark scheme.
Every plot has a title, a description and its figures as a table, for readers who cannot see it or want the numbers.
Read next: page.py (what is on the page), charts.py (the plots)
"""
