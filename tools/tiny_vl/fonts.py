"""The faces that pictures are lettered in: files of installed packages, so that nothing depends on the system."""

import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from PIL import ImageFont


# Compared by identity: faces are keys of caches that every letter goes through.
@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """One style of a family, found in an installed package."""

    family: str
    licence: str
    package: str  # as imported
    folder: str
    file: str

    def path(self) -> Path:
        """The font file. Raises ModuleNotFoundError, naming the package to install, when it is not there."""
        spec = importlib.util.find_spec(self.package)
        for place in (spec and spec.submodule_search_locations) or ():
            path = Path(place) / self.folder / self.file
            if path.is_file():
                return path
        wanted = self.package.replace("_", "-")
        raise ModuleNotFoundError(f"{self.family} needs {self.file} of the package {wanted}: pip install {wanted}")

    def sized(self, cap_pixels: float) -> ImageFont.FreeTypeFont:
        """The face with a capital H that high, give or take a pixel: cap_height tells.

        FreeType fits glyphs to the pixel grid, so heights come in steps, in some faces of two pixels; then it is the
        higher one.
        """
        return _font(self, max(1, round(cap_pixels)))

    def cap_height(self, cap_pixels: float) -> float:
        """Height in pixels of a capital H of the face sized so."""
        return _fit(self, max(1, round(cap_pixels)))[1]


def pick_face(rng: Random, held_out: bool = False) -> Face:
    """A face to train on, or one that training never sees; families alike, however many styles they have."""
    faces = HELD_OUT if held_out else FACES
    return rng.choice(rng.choice(_families(faces)))


# A font that has drawn holds some 200 KB; all faces in all sizes would be 0.5 GB in each of the drawing processes.
@lru_cache(maxsize=1024)
def _font(face: Face, cap_pixels: int) -> ImageFont.FreeTypeFont:
    return _open(face, _fit(face, cap_pixels)[0])


@lru_cache(maxsize=8192)
def _fit(face: Face, cap_pixels: int) -> tuple[float, float]:
    """The font size that comes nearest to capitals of that height, and the height it comes to."""
    share = _cap_share(face)
    tries: list[tuple[float, float]] = []
    for step in (0.0, -0.35, 0.35, -0.7, 0.7, 1.05):
        size = (cap_pixels + step) / share
        height = _cap_height(_open(face, size))
        if abs(height - cap_pixels) <= 0.5:
            return size, height
        tries.append((size, height))
    return min(tries, key=lambda tried: (tried[1] < cap_pixels, abs(tried[1] - cap_pixels)))


@lru_cache(maxsize=256)
def _cap_share(face: Face) -> float:
    """Height of a capital H as a share of the font size."""
    return _cap_height(_open(face, 500)) / 500


def _cap_height(font: ImageFont.FreeTypeFont) -> float:
    """Height in pixels of a capital H as it is drawn; rows that it covers in part count in part."""
    mask = font.getmask("H")
    width, pixels = mask.size[0], bytes(mask)
    rows = [max(pixels[start : start + width]) for start in range(0, len(pixels), width)]
    return sum(rows) / sorted(rows)[len(rows) // 2]


def _open(face: Face, size: float) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_path(face)), round(size, 2), layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=256)
def _path(face: Face) -> Path:
    return face.path()


@lru_cache(maxsize=2)
def _families(faces: tuple[Face, ...]) -> tuple[tuple[Face, ...], ...]:
    names = sorted({face.family for face in faces})
    return tuple(tuple(face for face in faces if face.family == name) for name in names)


def _faces(family: str, licence: str, package: str, folder: str, *files: str) -> tuple[Face, ...]:
    return tuple(Face(family, licence, package, folder, file) for file in files)


_MATPLOTLIB = ("matplotlib", "mpl-data/fonts/ttf")
_BITSTREAM, _OFL, _APACHE = "Bitstream Vera", "OFL-1.1", "Apache-2.0"
_BAKOMA = "BaKoMa"

# Left out: weights below regular (strokes thinner than a pixel at 16 px) and Computer Modern's italics, whose digits
# are old-style in one and whose dollar is a pound in the other.
FACES: tuple[Face, ...] = (
    *_faces("DejaVu Sans", _BITSTREAM, *_MATPLOTLIB, "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf"),
    *_faces("DejaVu Serif", _BITSTREAM, *_MATPLOTLIB, "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf"),
    *_faces("DejaVu Serif", _BITSTREAM, *_MATPLOTLIB, "DejaVuSerif-BoldItalic.ttf"),
    *_faces("DejaVu Sans Mono", _BITSTREAM, *_MATPLOTLIB, "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
    *_faces("DejaVu Sans Mono", _BITSTREAM, *_MATPLOTLIB, "DejaVuSansMono-Oblique.ttf"),
    *_faces("STIX General", _OFL, *_MATPLOTLIB, "STIXGeneral.ttf", "STIXGeneralBol.ttf", "STIXGeneralItalic.ttf"),
    *_faces("Computer Modern Roman", _BAKOMA, *_MATPLOTLIB, "cmr10.ttf", "cmb10.ttf"),
    *_faces("Computer Modern Sans", _BAKOMA, *_MATPLOTLIB, "cmss10.ttf"),
    *_faces(
        "Source Sans Pro", _OFL, "font_source_sans_pro", "files",
        "SourceSansPro-Regular.ttf", "SourceSansPro-It.ttf", "SourceSansPro-Semibold.ttf", "SourceSansPro-Bold.ttf",
        "SourceSansPro-BoldIt.ttf", "SourceSansPro-Black.ttf",
    ),
    *_faces(
        "Source Serif Pro", _OFL, "font_source_serif_pro", "files",
        "SourceSerifPro-Regular.ttf", "SourceSerifPro-It.ttf", "SourceSerifPro-Bold.ttf", "SourceSerifPro-Black.ttf",
        "SourceSerifPro-SemiboldIt.ttf",
    ),
    *_faces(
        "Caladea", _APACHE, "font_caladea", "files",
        "Caladea-Regular.ttf", "Caladea-Italic.ttf", "Caladea-BoldItalic.ttf",
    ),
    *_faces(
        "Hanken Grotesk", _OFL, "font_hanken_grotesk", "files",
        "HankenGrotesk-Regular.otf", "HankenGrotesk-Italic.otf", "HankenGrotesk-SemiBold.otf", "HankenGrotesk-Bold.otf",
    ),
    *_faces(
        "Manrope", _OFL, "font_manrope", "files",
        "Manrope-Regular.ttf", "Manrope-Medium.ttf", "Manrope-ExtraBold.ttf",
    ),
    *_faces("Fredoka One", _OFL, "font_fredoka_one", "files", "FredokaOne-Regular.ttf"),
)  # fmt: skip

# Styles of families above, and a family of which training sees nothing.
HELD_OUT: tuple[Face, ...] = (
    *_faces("DejaVu Serif", _BITSTREAM, *_MATPLOTLIB, "DejaVuSerif-Italic.ttf"),
    *_faces("STIX General", _OFL, *_MATPLOTLIB, "STIXGeneralBolIta.ttf"),
    *_faces("Computer Modern Typewriter", _BAKOMA, *_MATPLOTLIB, "cmtt10.ttf"),
    *_faces("Caladea", _APACHE, "font_caladea", "files", "Caladea-Bold.ttf"),
    *_faces("Hanken Grotesk", _OFL, "font_hanken_grotesk", "files", "HankenGrotesk-Medium.otf"),
    *_faces("Manrope", _OFL, "font_manrope", "files", "Manrope-Bold.ttf"),
)
