"""Whether an answer of a form can be had, asked before anything is admitted for it."""

from llguidance import LLMatcher, LLParserLimits

from triptych.errors import InvalidRequest
from triptych.grammar.source import shown, source_of
from triptych.grammar.spec import Grammar

# No grammar may hurt its neighbours: with these the costliest we could think of compile in 0.2 s, and are refused, or
# end their own request, where they would grow beyond. A state of the lexer takes 1 to 2 kB.
LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)


def check_grammar(grammar: Grammar) -> None:
    """Takes milliseconds, and up to some tenths of a second for the largest: not for an event loop.

    Raises InvalidRequest saying why no answer can have this form, or what in it cannot be guaranteed.
    """
    failed, reasons = LLMatcher.validate_grammar_with_warnings(source_of(grammar), None, limits=LIMITS)
    if failed:
        raise InvalidRequest(f"the {grammar.kind} grammar cannot be followed: {shown(reasons[0])}")
