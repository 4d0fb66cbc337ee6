"""Canonical RGB: the one meaning of an image's bytes, [height, width, 3] uint8.

What a model sees is defined here and nowhere else; every equality is measured against it.

- Size and orientation are those of `sniff`, by one rule for all containers (orientation.py): EXIF, else XMP. Pillow's
  `exif_transpose` gives the same for sound files. It differs from container to container elsewhere, and we do not
  follow: EXIF that is not TIFF makes it fail (WebP, PNG) or hide the XMP (JPEG), and in an animated PNG it misses EXIF
  behind the first frame. A GIF is always upright; an AVIF is as its own rotation and mirror say.
- The first frame counts. Of an animated PNG that is its default image; of a GIF the first picture, on a canvas that is
  white where the picture does not reach.
- Transparency is laid on white, rounding to nearest. A PNG's transparent colour is compared at the depth of the file,
  except in 16-bit RGB, where the high bytes are.
- Samples of 16 bits become their high byte (30000 becomes 117): scaled, never clipped.
- CMYK JPEGs are read the way Adobe writes them, inverted; RGB is (255 - C)(255 - K)/255 and so on.
- Colour profiles and gamma are ignored, as the models' own processors ignore them.

Only the picture reaches the decoder: metadata, thumbnails and further frames of JPEG, PNG and GIF are cut off before.
"""

from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import AvifImagePlugin, Image, ImageFile

from triptych.errors import InternalError, InvalidMedia
from triptych.multimodal import gif, jpeg, png
from triptych.multimodal.header import unsupported
from triptych.multimodal.sniff import MediaHeader, sniff

UInt8Array = npt.NDArray[np.uint8]

MAX_UNANNOUNCED_PIXELS = 1 << 26  # of an image whose size nobody has agreed to; about 0.5 GB while decoding

AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # where strangers' files are decoded no thread can be started

_WHITE = (255, 255, 255)
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def to_rgb(data: bytes, expect: MediaHeader | None = None) -> UInt8Array:
    """The image as [height, width, 3] uint8, contiguous and the caller's own. See `picture` for the rest."""
    return np.array(picture(data, expect), dtype=np.uint8)


def write_planes(data: bytes, expect: MediaHeader, out: UInt8Array) -> None:
    """The same numbers into `out` [3, height, width], as `expect` tells of it. See `picture`."""
    np.copyto(out, np.asarray(picture(data, expect)).transpose(2, 0, 1))


def picture(data: bytes, expect: MediaHeader | None = None) -> Image.Image:
    """The image in RGB, upright.

    expect: what the file was taken for when its size was agreed to; without it, images over MAX_UNANNOUNCED_PIXELS
            are refused
    Raises InvalidMedia, and for no bytes anything else: not the expected image, truncated, corrupt, unsupported. Raises
    InternalError while the process lets Pillow pass half images for whole ones.
    """
    header = sniff(data)
    _check_expected(header, expect)
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise InternalError("Pillow's LOAD_TRUNCATED_IMAGES is on in this process; no image can be trusted")
    try:
        image = _decode(data, header)
    except (InvalidMedia, MemoryError):
        raise
    except Exception as error:  # what decoders raise on strangers' bytes is no closed set
        raise InvalidMedia(f"the {header.format.upper()} cannot be decoded: {error}") from error
    if image.size != (header.raw_width, header.raw_height):
        raise InvalidMedia(
            f"the {header.format.upper()} decodes to {image.width}x{image.height} pixels, "
            f"its header says {header.raw_width}x{header.raw_height}"
        )
    if header.orientation in _TRANSPOSE:
        image = image.transpose(_TRANSPOSE[header.orientation])
    return image


def _check_expected(header: MediaHeader, expect: MediaHeader | None) -> None:
    if expect is None:
        if header.pixels > MAX_UNANNOUNCED_PIXELS:
            raise InvalidMedia(
                f"the image has {header.pixels} pixels, more than {MAX_UNANNOUNCED_PIXELS}", code="image_too_large"
            )
    elif header != expect:
        raise InvalidMedia(f"the image is {_describe(header)}, expected {_describe(expect)}")


def _describe(header: MediaHeader) -> str:
    return f"{header.format.upper()} {header.width}x{header.height} (orientation {header.orientation})"


def _decode(data: bytes, header: MediaHeader) -> Image.Image:
    """The stored picture in RGB, before orientation."""
    if header.format == "jpeg":
        return _load(jpeg.pixels_only(data), "JPEG").convert("RGB")
    if header.format == "png":
        return _decode_png(png.picture(data))
    if header.format == "gif":
        return _decode_gif(gif.first_frame(data), header)
    if header.format == "avif":
        if not AvifImagePlugin.SUPPORTED:
            raise unsupported("avif", "this server's Pillow, which knows none: send JPEG, PNG or WebP,")
        return _on_white(_load(data, "AVIF"))
    return _on_white(_load(data, "WEBP"))


def _load(data: bytes, decoder: str) -> Image.Image:
    image = Image.open(BytesIO(data), formats=(decoder,))
    image.load()
    return image


def _decode_png(picture: png.Picture) -> Image.Image:
    image = _load(picture.data, "PNG")
    # Pillow takes a data stream that ends early, but cleanly, for a whole image and leaves the missing rows 0.
    last_row = np.asarray(image.crop((0, image.height - 1, image.width, image.height)))
    if (picture.header.interlaced or not last_row.any()) and not png.holds_all_rows(picture):
        raise InvalidMedia("the PNG is truncated: its image data holds fewer rows than its header says")
    mask = Image.fromarray(_keyed(np.asarray(image), picture)) if picture.key else None
    if image.mode == "I;16":
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    flat = _on_white(image)
    if mask is not None:
        flat.paste(_WHITE, mask=mask)
    return flat


def _keyed(samples: npt.NDArray[np.generic], picture: png.Picture) -> npt.NDArray[np.bool_]:
    """Where samples, as Pillow hands them out, are the PNG's transparent colour: [height, width]."""
    depth = picture.header.depth
    if samples.ndim == 3:
        key = np.array(picture.key) >> (depth - 8)
        return np.asarray((samples == key).all(axis=2))
    if depth == 1:
        return np.asarray(samples == bool(picture.key[0]))
    scale = 255 // ((1 << depth) - 1) if depth < 8 else 1  # shallow samples are spread over 0 to 255
    return np.asarray(samples == picture.key[0] * scale)


def _decode_gif(frame: gif.FirstFrame, header: MediaHeader) -> Image.Image:
    image = _on_white(_load(frame.data, "GIF"))
    if image.size == (header.raw_width, header.raw_height):
        return image
    canvas = Image.new("RGB", (header.raw_width, header.raw_height), _WHITE)
    canvas.paste(image, (frame.left, frame.top))
    return canvas


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    layered = image.convert("RGBA")
    flat = Image.new("RGB", image.size, _WHITE)
    flat.paste(layered, mask=layered.getchannel("A"))
    return flat
