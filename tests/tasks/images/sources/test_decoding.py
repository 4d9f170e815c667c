"""Files as people have them, each made for real: what a viewer would show is what a model sees."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attngraft import image_files
from attngraft.tasks.images.sources import decoding, in_mode
from attngraft.tasks.images.sources.decoding import (
    HUGE,
    UnreadableImage,
    check_header,
    decode,
    decode_values,
    read_size,
)
from tests.tasks.images.datasets import load, make_folder, picture

RED, BLUE = (220, 30, 40), (30, 40, 220)


def seen(path: Path, mode: str = "RGB") -> np.ndarray:
    """What a model gets of the file at `path`."""
    with path.open("rb") as stream:
        pixels = np.asarray(in_mode(decode(stream, where=str(path)), mode))
    with path.open("rb") as stream:
        assert read_size(stream, where=str(path)) == pixels.shape[1::-1], "the header has the same size"
    return pixels


def png_of(header: tuple[int, ...], rows: bytes) -> bytes:
    chunks = (b"IHDR", struct.pack(">IIBBBBB", *header)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def two_colors(size: tuple[int, int] = (32, 16), mode: str = "RGB") -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, *size))
    return image.convert(mode)


@pytest.mark.parametrize(
    ("mode", "kind", "tolerance"),
    [
        ("RGB", "png", 0),
        ("RGB", "webp", 12),
        ("RGB", "jpeg", 3),
        ("P", "png", 6),
        ("P", "gif", 6),
        ("RGBA", "png", 0),
        ("CMYK", "tiff", 1),
        ("CMYK", "jpeg", 6),
        ("YCbCr", "jpeg", 3),
        ("RGB", "bmp", 0),
        ("RGB", "ppm", 0),
    ],
)
def test_colors_are_those_that_were_saved(tmp_path: Path, mode: str, kind: str, tolerance: int) -> None:
    image = two_colors()
    image = image.quantize(8) if mode == "P" else image.convert(mode)
    image.save(tmp_path / "x", kind)
    pixels = seen(tmp_path / "x").astype(int)
    assert pixels.shape == (16, 32, 3)
    assert np.abs(pixels[4, 4] - RED).max() <= tolerance
    assert np.abs(pixels[4, 28] - BLUE).max() <= tolerance


def test_a_jpeg_of_adobe_holds_inverted_cmyk(tmp_path: Path) -> None:
    """As Photoshop writes it: an APP14 segment, and ink counted down from 255."""
    image = two_colors(mode="CMYK")
    image.save(tmp_path / "x.jpg", quality=95)
    raw = (tmp_path / "x.jpg").read_bytes()
    assert b"Adobe" in raw
    with Image.open(tmp_path / "x.jpg") as opened:
        assert opened.mode == "CMYK"
        assert opened.info["adobe_transform"] in (0, 2)
    assert np.abs(seen(tmp_path / "x.jpg")[4, 4].astype(int) - RED).max() <= 6


def test_gray_with_and_without_alpha_and_one_bit(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 77).save(tmp_path / "l.png")
    assert (seen(tmp_path / "l.png") == 77).all()
    Image.new("LA", (4, 4), (0, 51)).save(tmp_path / "la.png")
    assert (seen(tmp_path / "la.png") == 204).all(), "a fifth of black on white"
    Image.new("1", (4, 4), 1).save(tmp_path / "one.png")
    assert (seen(tmp_path / "one.png") == 255).all()
    assert (seen(tmp_path / "one.png", "L") == 255).all()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_what_is_transparent_is_laid_on_white(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image.putpixel((0, 0), (10, 10, 10, 255))
    image.save(tmp_path / "rgba.png")
    pixels = seen(tmp_path / "rgba.png", mode)
    assert (pixels[0, 0] == 10).all()
    assert (pixels[1:] == 255).all()


def test_a_palette_with_a_transparent_entry(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 1), 1)
    image.save(tmp_path / "p.png", transparency=0)
    pixels = seen(tmp_path / "p.png")
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[1, 1].tolist() == [200, 100, 50]


@pytest.mark.parametrize("turn", range(2, 9))
def test_pictures_stand_upright_as_their_exif_data_say(tmp_path: Path, turn: int) -> None:
    upright = two_colors((32, 16))
    back = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }[turn]
    stored = upright
    for step in back:
        stored = stored.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = turn
    stored.save(tmp_path / "x.png", exif=exif)
    assert np.array_equal(seen(tmp_path / "x.png"), np.asarray(upright))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_data_leave_the_picture_as_it_is(tmp_path: Path) -> None:
    two_colors().save(tmp_path / "x.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert seen(tmp_path / "x.jpg").shape == (16, 32, 3)


def test_deep_gray_keeps_its_upper_bits(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as opened:
        assert opened.mode.startswith("I")
    assert np.array_equal(seen(tmp_path / "x.png", "L"), ramp >> 8)
    assert np.array_equal(seen(tmp_path / "x.png")[..., 1], ramp >> 8)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_tiff_whose_zero_is_white(tmp_path: Path, bits: int) -> None:
    values = np.array([[0, 51, 102], [153, 204, 255]], np.uint8)
    stored = (255 - values).tobytes() if bits == 8 else (65535 - values.astype("<u2") * 257).astype("<u2").tobytes()
    tags = {256: 3, 257: 2, 258: bits, 259: 1, 262: 0, 273: 8, 274: 3, 277: 1, 278: 2, 279: len(stored)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    data = b"II*\0" + struct.pack("<I", 8 + len(stored)) + stored + struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "x.tif").write_bytes(data)
    assert np.array_equal(seen(tmp_path / "x.tif", "L"), values[::-1, ::-1])


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_a_transparent_gray(tmp_path: Path, bits: int) -> None:
    """0 is transparent, and so white; 1, or 256 of 16 bits, remains."""
    pixels = [0, 1, 0, 1, 0, 1, 0, 1] if bits < 16 else [0, 256] * 4
    row = int("".join(f"{pixel:0{bits}b}" for pixel in pixels), 2).to_bytes(bits, "big")
    for transparent, expected in ((pixels[0], [255, None]), (pixels[1], [0, 255])):
        header, color = struct.pack(">IIBBBBB", 8, 1, bits, 0, 0, 0, 0), struct.pack(">H", transparent)
        chunks = [(b"IHDR", header), (b"tRNS", color), (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")]
        data = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
            for name, body in chunks
        )
        (tmp_path / "x.png").write_bytes(data)
        one = {1: 255, 2: 85, 4: 17, 8: 1, 16: 1}[bits]
        assert seen(tmp_path / "x.png", "L")[0, :2].tolist() == [one if gray is None else gray for gray in expected]


@pytest.mark.parametrize("values", [[0, 70000], [-1, 255]])
def test_integers_beyond_16_bits_are_refused(tmp_path: Path, values: list[int]) -> None:
    Image.fromarray(np.array([values], np.int32)).save(tmp_path / "x.tiff")
    with pytest.raises(
        UnreadableImage, match=rf"pixels from {values[0]} to {values[1]}, outside of 0 to 65535; save it"
    ):
        seen(tmp_path / "x.tiff")
    Image.fromarray(np.array([[0, 65535]], np.int32)).save(tmp_path / "x.tiff")
    assert seen(tmp_path / "x.tiff", "L").tolist() == [[0, 255]]


def test_deep_colors_keep_their_upper_bits(tmp_path: Path) -> None:
    """A 16-bit RGB png, which Pillow cannot write."""
    values = np.random.RandomState(0).randint(0, 65536, (5, 7, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    (tmp_path / "x.png").write_bytes(png_of((7, 5, 16, 2, 0, 0, 0), rows))
    assert np.array_equal(seen(tmp_path / "x.png"), (values >> 8).astype(np.uint8))


@pytest.mark.parametrize(
    ("bits", "suffix", "reverse"),
    [(2, "png", False), (4, "png", False), (4, "tif", False), (2, "tif", True), (4, "tif", True)],
)
def test_labels_of_2_and_4_bits_are_not_scaled(tmp_path: Path, bits: int, suffix: str, reverse: bool) -> None:
    values = np.arange(8, dtype=np.uint8).reshape(2, 4) % 2**bits
    pixels = [int("".join(f"{value:0{bits}b}" for value in row), 2).to_bytes(bits // 2, "big") for row in values]
    if suffix == "png":
        data = png_of((4, 2, bits, 0, 0, 0, 0), b"".join(b"\0" + row for row in pixels))
    else:
        tags = {256: 4, 257: 2, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: 2, 279: len(b"".join(pixels))}
        if reverse:  # of the bits in a byte
            tags[266] = 2
            pixels = [bytes(int(f"{byte:08b}"[::-1], 2) for byte in row) for row in pixels]
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
        data = b"II*\0" + struct.pack("<I", 16) + b"".join(pixels).ljust(8, b"\0")
        data += struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "x").write_bytes(data)
    with (tmp_path / "x").open("rb") as file:
        assert np.array_equal(np.asarray(decode_values(file, where="x")), values)
    assert seen(tmp_path / "x", "L").max() == values.max() * {2: 85, 4: 17}[bits]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png_of((1, 1, 16, 2, 0, 0, 0), bytes(7)), "it has several channels of 16 bits; save masks with 8 bits"),
        (png_of((1, 1, 16, 4, 0, 0, 0), bytes(5)), "it has several channels of 16 bits"),
        (png_of((1, 1, 16, 6, 0, 0, 0), bytes(9)), "it has several channels of 16 bits"),
        (b"P5 2 1 2\n\1\2", r"its values, up to 2, would be scaled; save masks as PNG"),
        (b"P2 2 1 300\n1 2\n", r"its values, up to 300, would be scaled"),
        (b"P6 1 1 65535\n\0\1\0\2\0\3", r"its values, up to 65535, would be scaled"),
        (b"P5 2 1 255\n\1\2", None),
        (b"P2 2 1 65535\n1 2\n", None),
        (b"P5 2 1 65535\n\0\1\0\2", None),
    ],
)
def test_masks_whose_values_would_change_are_refused(content: bytes, message: str | None) -> None:
    decode(io.BytesIO(content), where="x")
    if message is None:
        assert np.array_equal(np.asarray(decode_values(io.BytesIO(content), where="x")), [[1, 2]])
        return
    with pytest.raises(UnreadableImage, match=message):
        decode_values(io.BytesIO(content), where="x")


def test_a_deep_tiff_of_colors_is_no_mask() -> None:
    kinds = {256: (4, 1, 1), 257: (4, 1, 1), 258: (3, 3, 8), 259: (3, 1, 1), 262: (3, 1, 2)}
    kinds |= {273: (4, 1, 14), 277: (3, 1, 3), 278: (4, 1, 1), 279: (4, 1, 6)}
    entries = b"".join(struct.pack("<HHII", tag, *kind) for tag, kind in kinds.items())
    data = b"II*\0" + struct.pack("<I3H3HH", 20, 16, 16, 16, 1, 2, 3, len(kinds)) + entries + bytes(4)
    decode(io.BytesIO(data), where="x")
    with pytest.raises(UnreadableImage, match="it has several channels of 16 bits"):
        decode_values(io.BytesIO(data), where="x")


@pytest.mark.parametrize(
    ("bits", "grays", "read"),
    [
        *[(1, [0, 255], True), (1, [255, 0], True), (4, [0, 9], True), (8, [0, 9], True), (8, range(256), True)],
        *[(8, [0, 255], False), (4, [0, 255], False), (4, range(16), False), (8, [0], False)],
    ],
)
def test_gray_palettes_of_bmp(bits: int, grays: Sequence[int], read: bool) -> None:
    """Pillow takes black and white for 1 bit, and gray for 8 bits, whatever the header says."""
    start = 54 + 4 * len(grays)
    header = struct.pack("<2sIIIIiiHHIIiiII", b"BM", start + 4, 0, start, 40, 4, 1, 1, bits, 0, 4, 0, 0, len(grays), 0)
    data = io.BytesIO(header + b"".join(bytes([gray] * 3 + [0]) for gray in grays) + bytes(4))
    if read:
        assert not np.asarray(decode_values(data, where="x")).any()
        return
    with pytest.raises(
        UnreadableImage, match=rf"a BMP with gray colors in {bits} bits, which Pillow misreads; save it as"
    ):
        decode(data, where="x")


@pytest.mark.parametrize(
    "tags", [{258: (16, 16, 16), 284: 2}, {258: (12,)}, {258: (8,), 339: (2,)}, {258: (24,)}], ids=str
)
def test_tiffs_that_pillow_misreads_are_refused(tags: dict[int, Any]) -> None:
    image = Image.new("RGB", (4, 4))
    check_header(image)
    image.tag_v2 = {258: (16, 16, 16), 284: 1}  # type: ignore[attr-defined]
    check_header(image)
    image.tag_v2 = tags  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="an unusual form of TIFF, which Pillow misreads; save it with 8 bits"):
        check_header(image)


def tiff(
    values: np.ndarray, tags: dict[int, tuple[int, ...]], packed: Sequence[bytes], *, compression: int
) -> io.BytesIO:
    """A gray image whose strips or tiles, `packed`, are in order; `tags` has their offsets as 0, 1, ..."""
    start = 8 + np.cumsum([0, *map(len, packed)])
    height, width = values.shape
    known = {256: (width,), 257: (height,), 258: (8,), 259: (compression,), 262: (1,), 277: (1,)} | tags
    for tag in {273, 324} & known.keys():
        known[tag] = tuple(int(start[piece]) for piece in known[tag])
        known[tag + (6 if tag == 273 else 1)] = tuple(len(packed[piece]) for piece in range(len(known[tag])))
    entries, more, place = b"", b"", int(start[-1]) + 2 + 12 * len(known) + 4
    for tag, numbers in sorted(known.items()):
        data = struct.pack(f"<{len(numbers)}I", *numbers)
        entries += struct.pack("<HHI", tag, 4, len(numbers)) + (
            data if len(data) == 4 else struct.pack("<I", place + len(more))
        )
        more += data if len(data) > 4 else b""
    body = b"".join(packed) + struct.pack("<H", len(known)) + entries + bytes(4) + more
    return io.BytesIO(struct.pack("<2sHI", b"II", 42, start[-1]) + body)


@pytest.mark.parametrize("compression", [1, 8], ids=["raw", "deflate"])
@pytest.mark.parametrize("kind", ["strips", "tiles"])
def test_a_tiff_without_some_of_its_strips_or_tiles_is_damaged(kind: str, compression: int) -> None:
    values = np.arange(1, 1 + 40 * 32, dtype=np.uint8).reshape(40, 32)
    if kind == "strips":
        pieces = [values[top : top + 16] for top in range(0, 40, 16)]
        tags, offsets = {278: (16,)}, 273
    else:
        padded = np.pad(values, ((0, 8), (0, 0)))
        pieces = [padded[top : top + 16, left : left + 16] for top in range(0, 40, 16) for left in (0, 16)]
        tags, offsets = {322: (16,), 323: (16,)}, 324
    packed = [piece.tobytes() if compression == 1 else zlib.compress(piece.tobytes()) for piece in pieces]
    whole = tiff(values, {**tags, offsets: tuple(range(len(pieces)))}, packed, compression=compression)
    assert np.array_equal(np.asarray(decode_values(whole, where="x")), values)
    for count in (1, len(pieces) - 1):
        damaged = tiff(values, {**tags, offsets: tuple(range(count))}, packed, compression=compression)
        with pytest.raises(UnreadableImage, match=rf"it is damaged: it has {count} of {len(pieces)} strips or tiles"):
            read_size(damaged, where="x")


def test_a_huge_jpeg_is_reduced_while_it_is_decoded(tmp_path: Path) -> None:
    side = int(HUGE**0.5) + 64
    Image.new("L", (side, side), 90).save(tmp_path / "x.jpg", quality=50)
    pixels = seen(tmp_path / "x.jpg", "L")
    assert pixels.shape == (-(-side // 2), -(-side // 2))
    assert (pixels == 90).all()
    two_colors((64, 64)).save(tmp_path / "small.jpg")
    with Image.open(tmp_path / "small.jpg") as plain:
        assert np.array_equal(seen(tmp_path / "small.jpg"), np.asarray(plain)), "others are what Pillow makes of them"


def test_a_jpeg_beyond_the_limit_is_read_and_a_png_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "PIXELS", 1000)
    two_colors((64, 64)).save(tmp_path / "x.jpg")
    assert seen(tmp_path / "x.jpg").shape == (64, 64, 3)
    two_colors((64, 64)).save(tmp_path / "x.png")
    with pytest.raises(UnreadableImage, match=r"x\.png: .*more than 1,000; make it smaller"):
        seen(tmp_path / "x.png")


def test_webp_has_a_limit_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "WEBP_PIXELS", 1000)
    two_colors((64, 64)).save(tmp_path / "x.webp")
    with pytest.raises(UnreadableImage, match=r"4,096 pixels, more than 1,000; make it smaller"):
        seen(tmp_path / "x.webp")


_PLAIN = b" 1 2" * 4


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        (b"P5 4 2 255\n" + bytes(8), False),
        (b"P5\n# made by hand\n4 2\n# depth\r\n65535\n" + bytes(16), False),
        (b"P6\t4 2 255 " + bytes(24), False),
        (b"P4 4 2\n" + bytes(2), False),
        (b"P5 4 2 254\n" + bytes(8), True),
        (b"P6 4 2 65535\n" + bytes(48), True),
        (b"P2 4 2 9" + _PLAIN, True),
        (b"P5 #" + b"x" * 2000 + b"\n4 2 255\n" + bytes(8), True),
    ],
)
def test_slow_kinds_of_ppm_are_small(
    tmp_path: Path, content: bytes, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.ppm").write_bytes(content)
    assert seen(tmp_path / "x.ppm").shape == (2, 4, 3)
    monkeypatch.setattr(image_files, "_SLOW_PPM", 7)
    if refused:
        with pytest.raises(UnreadableImage, match="takes too long to read; convert it to PNG"):
            seen(tmp_path / "x.ppm")
    else:
        assert seen(tmp_path / "x.ppm").shape == (2, 4, 3)


def test_plain_ppm_with_many_comments_are_refused(tmp_path: Path) -> None:
    for count in (9, 2000):
        (tmp_path / f"{count}.pgm").write_bytes(b"P2 4 2 9\n" + b"#\n" * count + _PLAIN)
    assert seen(tmp_path / "9.pgm").shape == (2, 4, 3)
    with pytest.raises(UnreadableImage, match="convert it to PNG"):
        seen(tmp_path / "2000.pgm")


def test_large_transparent_images_are_blended_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (37, 20, 4), dtype=np.uint8)
    whole = in_mode(Image.fromarray(pixels), "RGB")
    monkeypatch.setattr(decoding, "_STRIP", 100)
    assert len(list(decoding.strips(whole))) == 8
    assert np.array_equal(in_mode(Image.fromarray(pixels), "RGB"), whole)


def test_damaged_chunks_of_png_are_refused(tmp_path: Path) -> None:
    two_colors().save(tmp_path / "x.png", compress_level=0)
    data = (tmp_path / "x.png").read_bytes()
    seen(tmp_path / "x.png")
    middle = data.index(b"IDAT") + 100
    (tmp_path / "x.png").write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(UnreadableImage, match=r"it is damaged: a checksum is wrong"):
        seen(tmp_path / "x.png")
    (tmp_path / "x.png").write_bytes(data[:33] + data[8:33] + data[33:])
    with pytest.raises(UnreadableImage, match=r"it has two headers"):
        seen(tmp_path / "x.png")


def _truncated(kind: str) -> bytes:
    data = io.BytesIO()
    picture(1, size=(64, 64)).save(data, kind)
    return data.getvalue()[: len(data.getvalue()) // 2]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello world", "unrecognized image format"),
        (_truncated("jpeg"), "truncated"),
        (_truncated("png"), "truncated"),
        (b"\xff\xd8\xff", "."),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "."),
        (b"GIF89a" + b"\xff" * 30, "."),
    ],
)
def test_damaged_files_say_why(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x.jpg").write_bytes(content)
    with pytest.raises(
        UnreadableImage, match=rf"x\.jpg: cannot be read as an image \(.*{reason}.*\); replace or remove"
    ):
        seen(tmp_path / "x.jpg")


def test_numbers_without_a_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "x.tiff")
    with pytest.raises(UnreadableImage, match="floating-point pixels"):
        seen(tmp_path / "x.tiff")


def test_several_frames_give_the_first(tmp_path: Path) -> None:
    first, second = Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), BLUE)
    first.save(tmp_path / "x.gif", save_all=True, append_images=[second])
    assert np.abs(seen(tmp_path / "x.gif")[0, 0].astype(int) - RED).max() <= 6


def test_every_kind_of_picture_trains_in_one_folder(tmp_path: Path) -> None:
    """Non-ASCII names, blanks, capitals in endings, links, and each mode, through the whole of `load`."""
    make_folder(tmp_path, {"train": {"größe": 2, "日本 語": 2}, "val": {"größe": 1, "日本 語": 1}})
    folder = tmp_path / "train" / "größe"
    picture(1).save(folder / "ÀÉ ü#1%.JPG")
    picture(2, mode="CMYK").save(folder / "cmyk.jpeg")
    picture(3, mode="LA").save(folder / "la.PNG")
    picture(4).quantize(16).save(folder / "palette.gif")
    picture(5, mode="1").save(folder / "bits.tif")
    Image.fromarray(np.arange(144, dtype=np.uint16).reshape(12, 12) * 400).save(folder / "deep.png")
    os.symlink("cmyk.jpeg", folder / "link.jpg")
    data = load(tmp_path)
    assert data.facts["counts"]["train"] == {"größe": 9, "日本 語": 2}
    names = [data.train.name(i) for i in range(len(data.train))]
    assert "train/größe/ÀÉ ü#1%.JPG" in names
    for i in range(len(data.train)):
        assert data.train[(0, i)][0].shape == (3, 16, 16)
    assert any("is a duplicate within a split" in note for note in data.facts["notes"]), "a link shows the same picture"
