"""The faces that pictures are lettered in: files of installed packages, so that nothing depends on the system."""

import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from PIL import ImageFont


@dataclass(frozen=True, slots=True)
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
        """The face with a capital H of that height, ± 0.5 pixel: sizes and FreeType's grid fitting are in steps."""
        step = 0.5 if cap_pixels < 24 else 1.0
        return _font(self, round(cap_pixels / step) * step)


def cap_height(font: ImageFont.FreeTypeFont) -> float:
    """Height in pixels of a capital H as it is drawn."""
    _, top, _, bottom = font.getbbox("H")
    return bottom - top


def pick_face(rng: Random, held_out: bool = False) -> Face:
    """A face to train on, or one that training never sees; families alike, however many styles they have."""
    faces = HELD_OUT if held_out else FACES
    family = rng.choice(sorted({face.family for face in faces}))
    return rng.choice([face for face in faces if face.family == family])


# A font opens its file and keeps tables of ~50 KiB; a worker that draws everything would else hold thousands.
@lru_cache(maxsize=2048)
def _font(face: Face, cap_pixels: float) -> ImageFont.FreeTypeFont:
    size = cap_pixels / _cap_share(face)
    return ImageFont.truetype(str(face.path()), round(size, 2), layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=256)
def _cap_share(face: Face) -> float:
    """Height of a capital H as a share of the font size."""
    return cap_height(ImageFont.truetype(str(face.path()), 500, layout_engine=ImageFont.Layout.BASIC)) / 500


def _faces(family: str, licence: str, package: str, folder: str, *files: str) -> tuple[Face, ...]:
    return tuple(Face(family, licence, package, folder, file) for file in files)


_MATPLOTLIB = ("matplotlib", "mpl-data/fonts/ttf")
_BITSTREAM, _OFL, _APACHE = "Bitstream Vera", "OFL-1.1", "Apache-2.0"
_KNUTH = "Knuth (BaKoMa)"

# Left out: weights below regular (strokes thinner than a pixel at 16 px) and Computer Modern's italics, whose digits
# are old-style in one and whose dollar is a pound in the other.
FACES: tuple[Face, ...] = (
    *_faces("DejaVu Sans", _BITSTREAM, *_MATPLOTLIB, "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf"),
    *_faces("DejaVu Serif", _BITSTREAM, *_MATPLOTLIB, "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf"),
    *_faces("DejaVu Serif", _BITSTREAM, *_MATPLOTLIB, "DejaVuSerif-BoldItalic.ttf"),
    *_faces("DejaVu Sans Mono", _BITSTREAM, *_MATPLOTLIB, "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
    *_faces("DejaVu Sans Mono", _BITSTREAM, *_MATPLOTLIB, "DejaVuSansMono-Oblique.ttf"),
    *_faces("STIX General", _OFL, *_MATPLOTLIB, "STIXGeneral.ttf", "STIXGeneralBol.ttf", "STIXGeneralItalic.ttf"),
    *_faces("Computer Modern Roman", _KNUTH, *_MATPLOTLIB, "cmr10.ttf", "cmb10.ttf"),
    *_faces("Computer Modern Sans", _KNUTH, *_MATPLOTLIB, "cmss10.ttf"),
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

# Styles of the families above, and one family (cmtt10) of which training sees nothing.
HELD_OUT: tuple[Face, ...] = (
    *_faces("DejaVu Serif", _BITSTREAM, *_MATPLOTLIB, "DejaVuSerif-Italic.ttf"),
    *_faces("STIX General", _OFL, *_MATPLOTLIB, "STIXGeneralBolIta.ttf"),
    *_faces("Computer Modern Typewriter", _KNUTH, *_MATPLOTLIB, "cmtt10.ttf"),
    *_faces("Caladea", _APACHE, "font_caladea", "files", "Caladea-Bold.ttf"),
    *_faces("Hanken Grotesk", _OFL, "font_hanken_grotesk", "files", "HankenGrotesk-Medium.otf"),
    *_faces("Manrope", _OFL, "font_manrope", "files", "Manrope-Bold.ttf"),
)
