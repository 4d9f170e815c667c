"""Screenshots of reports and explorer pages, made by headless Chromium: `python docs/generate/pictures.py PAGE OUT.png`.

A second file OUT-dark.png shows the page in its dark theme. Colors are reduced to a palette of 256.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

_SCHEMES = {"": 1, "-dark": 0}  #: suffix of the file -> Chromium's number of the color scheme


def screenshot(page: Path, out: Path, *, width: int, height: int, scheme: int) -> None:
    """Write the upper part of a page, `width` x `height` pixels, as a PNG."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("Chromium is required (Debian: apt install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.png"
        command = [
            *(chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={scheme}"),
            *("--virtual-time-budget=4000", f"--user-data-dir={folder}/profile", f"--screenshot={whole}"),
            page.resolve().as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with Image.open(whole) as image:
            image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                out, optimize=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write screenshots of a page, light and dark.")
    parser.add_argument("page", type=Path, help="HTML file")
    parser.add_argument("out", type=Path, help="PNG file")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=800)
    given = parser.parse_args()
    if not given.page.is_file():
        parser.error(f"{given.page}: no such file")
    for suffix, scheme in _SCHEMES.items():
        out = given.out.with_stem(given.out.stem + suffix)
        screenshot(given.page, out, width=given.width, height=given.height, scheme=scheme)
        print(f"{out} ({out.stat().st_size // 1000} KB)")


if __name__ == "__main__":
    main()
