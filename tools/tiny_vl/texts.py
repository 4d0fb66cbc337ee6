"""Words that signs and chats use, and strings to read: real, made-up and random."""

from functools import cache
from random import Random

from tools.tiny_vl.scenes import LOOK_ALIKE, UNAMBIGUOUS

_WORDS = """
able air and animal apple arm art baby back bag ball bank bar bath bay beach bean bear beat bed bee bell best big bike
bird black blue board boat body bone book boot box boy brain branch bread brick bridge bright bring brown brush bus
butter buy cafe cake call camp car card cash cat chair cheese child city class clean clear clock close cloud coat
coffee coin cold cook corn cost cow cream cup dance dark data day deal dear deck deep deer desk dinner doctor dog door
down draft dream dress drink drive dry duck ear early earth east easy eat egg empty end energy enter evening exit eye
face fact fair farm fast feather field fire fish flag floor flower fly food foot forest fork free fresh friend fruit
full fun game garden gas gate gift girl glass gold good grade grain grand grape grass gray great green grey guard
guest guitar hair half hall hand happy hard hat head hear heart heat help herb here hero high hill home honey horse
hot hotel house ice idea ink inn iron island jam jar jet job joy juice jump jury key kind king kit kite kitten knee
knife lake lamp land large last leaf learn left lemon less letter light lime line lion list long lunch made magic mail
main make man map mark market math may meal meat media meet menu mile milk mind mint mirror money moon morning mouse
mouth movie museum music name near neat neck need nest net new news next night nine noon north nurse nut ocean office
oil old olive open orange oven page paint pan paper park part party path peace pear pen pepper phone piano pie pig pin
pink plane plant plate play plum point pond pool post pot press price prize pull push queen quick quiet rabbit race
radio rain read ready red rent rest rice ride right ring river road rock roof room root rose round run sad safe salad
sale salt sand school sea seat seed selfie sell send seven shade shadow sheep sheet ship shirt shoe shop show sign
silver sing sit six skin sky sleep slow small smile snow soap sock soft song soup south space spoon spring stamp star
start station stay steam stone stop store storm street sugar summer sun sweet table tall tank taxi tea team ten tent
test thank thread three ticket tie tiger time tiny toast today toilet tomato tool tooth top tower town toy track train
travel tray tree trip truck turn two under up valley van view village visit wait walk wall warm wash water wave way
week west wet wheat wheel white wide wild win wind window wine winter wolf wood word work world yard year yellow yes
young zebra zero zone
"""
WORDS = tuple(_WORDS.split())

_NAMES = """
Ada Adam Alex Amir Anna Anton Ben Carla Chen Clara Dan Dana David Elena Emil Emma Eva Felix Fred Greta Hana Hanna Hugo
Ida Ines Ivan Jan Jane Jonas Juan Karim Kira Lara Lena Leo Lina Lucas Maja Maria Mark Mary Max Mia Mina Nadia Nina
Noah Nora Olga Omar Oscar Pablo Paul Peter Priya Rita Rosa Ryan Sam Sara Sofia Tariq Theo Tim Tom Uma Vera Will Yara
Yuki Zoe
"""
NAMES = tuple(_NAMES.split())

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = "January February March April May June July August September October November December"
MONTHS = tuple(_MONTHS.split())

_UPPER = "".join(c for c in UNAMBIGUOUS if c.isupper())
_LOWER = "".join(c for c in UNAMBIGUOUS if c.islower())
_DIGITS = "".join(c for c in UNAMBIGUOUS if c.isdigit())
CELL_CHARACTERS = _UPPER + _DIGITS


@cache
def readable_words(longest: int) -> tuple[str, ...]:
    """Real words, in each case that needs none but unambiguous characters."""
    cases = (case for word in WORDS if len(word) <= longest for case in (word, word.upper(), word.capitalize()))
    return tuple(case for case in cases if set(case) <= set(UNAMBIGUOUS))


@cache
def short_words(longest: int) -> tuple[str, ...]:
    return tuple(word for word in WORDS if len(word) <= longest)


def any_case(word: str, rng: Random) -> str:
    """The word as signs have it: capitals, small letters, or a capital first."""
    return rng.choice((word.upper(), word.lower(), word.capitalize()))


def string(characters: str, length: int, rng: Random) -> str:
    """Random characters, a letter or digit among them: a lone dash could be a dot or a fleck."""
    while True:
        text = "".join(rng.choices(characters, k=length))
        if any(character.isalnum() for character in text):
            return text


def unambiguous_string(longest: int, rng: Random) -> str:
    """1 to `longest` random characters: mixed, capitals, small letters, digits."""
    characters = rng.choices((UNAMBIGUOUS, _UPPER, _LOWER, _DIGITS, CELL_CHARACTERS), (40, 25, 12, 12, 11))[0]
    return string(characters, rng.randint(1, longest), rng)


def look_alike_string(longest: int, rng: Random) -> str:
    """Random characters of the whole alphabet, one or two real words in any case, or an amount."""
    sort = rng.random()
    if sort < 0.2 and longest >= 5:
        return _two_words(longest, rng)
    if sort < 0.55:
        return string(LOOK_ALIKE, rng.randint(1, longest), rng)
    if rng.random() < 0.8 or longest < 4:
        return any_case(rng.choice(short_words(max(2, longest))), rng)
    number = f"{rng.randint(0, 99)}.{rng.randint(0, 99):02}"
    return rng.choice((number, str(rng.randint(0, 9999)), f"{rng.randint(0, 23)}:{rng.randint(0, 59):02}"))[:longest]


def _two_words(longest: int, rng: Random) -> str:
    """Two real words with a space between, in the same case or each in its own."""
    first = rng.choice(short_words(longest - 3))
    second = rng.choice(short_words(longest - len(first) - 1))
    if rng.random() < 0.5:
        return any_case(f"{first} {second}", rng)
    return f"{any_case(first, rng)} {any_case(second, rng)}"


def pronounceable(length: int, rng: Random) -> str:
    """A made-up word of unambiguous characters, in one of the three cases."""
    upper = rng.random() < 0.5
    vowels, consonants = ("AEUY", "BCDFGHJKLMNPRSTVZ") if upper else ("aey", "bdfghkmnrt")
    start = rng.randrange(2)
    word = "".join(rng.choice(vowels if (start + i) % 2 else consonants) for i in range(length))
    return word.capitalize() if not upper and rng.random() < 0.4 and word[0].upper() in _UPPER else word


def readable_text(longest: int, rng: Random) -> str:
    """A word, a number or two of them, at most `longest` characters, none of them ambiguous."""
    if longest >= 5 and rng.random() < 0.25:
        first = _readable_word(longest // 2, rng)
        return (
            first
            + rng.choices((" ", "-", ":", "=", "."), (60, 15, 10, 10, 5))[0]
            + _readable_word(longest - len(first) - 1, rng)
        )
    return _readable_word(longest, rng)


def _readable_word(longest: int, rng: Random) -> str:
    sort = rng.random()
    real = readable_words(longest)
    if sort < 0.5 and real:
        return rng.choice(real)
    if sort < 0.8 and longest >= 3:
        return pronounceable(rng.randint(3, longest), rng)
    return string(_DIGITS, rng.randint(1, min(longest, 5)), rng)


def near_miss(text: str, rng: Random) -> str:
    """The text with one letter or digit exchanged for another of its sort."""
    places = [place for place, character in enumerate(text) if character.isalnum()]
    place = rng.choice(places)
    sort = next(sort for sort in (_UPPER, _LOWER, _DIGITS) if text[place] in sort)
    other = rng.choice([character for character in sort if character != text[place]])
    return text[:place] + other + text[place + 1 :]
