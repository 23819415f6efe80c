"""Leaves two artifacts: numbers as CSV, and a chart of them as SVG.

    belljar run examples/plot.py --json

Whatever is in ./artifacts when the program ends arrives in the result, base64.
"""
import csv
import math
import os

points = [(x, math.sin(x / 10)) for x in range(101)]
os.makedirs("artifacts", exist_ok=True)

with open("artifacts/sine.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["x", "y"])
    writer.writerows((x, f"{y:.4f}") for x, y in points)

path = " ".join(f"{4 * x},{100 - 80 * y:.1f}" for x, y in points)
with open("artifacts/sine.svg", "w") as file:
    file.write(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 200">'
        f'<polyline points="{path}" fill="none" stroke="teal" stroke-width="2"/></svg>\n'
    )

print("Drew a sine wave: artifacts/sine.csv and artifacts/sine.svg")
