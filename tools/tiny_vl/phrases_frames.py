"""Ways to ask that fit any topic: patterns around a thing ("the total") or around a clause ("how much it is").

So small a model takes an unknown wording for another question unless it has met each question in a great many: what
all topics are asked in says nothing of the topic, and that is what it has to learn.
"""

_WISH = "(I'd like|I would like|I want|I need)"
_CAN_YOU = "(Can|Could|Would|Will) you"


def wanted(*things: str) -> tuple[str, ...]:
    """Patterns that ask for the thing, "the total (on {pic}|)", called in any of those ways."""
    thing = f"({'|'.join(things)})"
    return (
        f"What@is {thing}?",
        f"What@is {thing}?",
        f"What would {thing} be?",
        f"{_CAN_YOU} (tell me|give me|name|find) {thing}?",
        f"{_WISH} to (know|see|have) {thing}.",
        f"I (want|need|am looking for) {thing}.",
        f"(Find|Give me|Show me|Tell us|Let me know|Let me have) {thing}.",
        f"(Find|State|Report|Answer with|Write down|Work out|Look for) {thing}.",
        f"(Tell me|Name|Say|Give|Write) {thing}.",
        f"{thing}?",
        f"{thing}?",
        f"{thing}, please.",
        f"(What|How) about {thing}?",
        f"Do you (know|see) {thing}?",
        f"(Can|Could|May) I (have|get|know) {thing}?",
        f"My question is about {thing}.",
        f"I (wonder|ask|want to know) what {thing} is.",
        f"{_CAN_YOU} (tell me|say|see) what {thing} is?",
        f"(Tell me|Say|Let me know) what {thing} is.",
        f"Any idea what {thing} is?",
    )


def wondered(*clauses: str) -> tuple[str, ...]:
    """Patterns around an indirect question, "which bar is the tallest"."""
    clause = f"({'|'.join(clauses)})"
    return (
        f"{_WISH} to (know|hear|see) {clause}.",
        f"I (wonder|ask|ask myself|do not know|don't know|am not sure) {clause}.",
        f"{_CAN_YOU} (tell me|say|see|find out|tell) {clause}?",
        f"Do you (know|see) {clause}?",
        f"(Tell me|Say|Let me know|Tell us) {clause}.",
        f"(Find out|See|Check|Show me|Write|Answer) {clause}.",
        f"Any idea {clause}?",
        f"(My question is|The question is|Question:) {clause}?",
        f"I can't (tell|see) {clause}.",
        f"{clause}?",
    )


def doubted(*statements: str) -> tuple[str, ...]:
    """Patterns that ask whether a statement holds, "the texts are the same"; the answers are yes and no."""
    that = f"({'|'.join(statements)})"
    return (
        f"Is it (true|right|so|correct) that {that}?",
        f"{that}. (True|Right|Yes or no|Is that right|Is that true|Correct|Am I right)?",
        f"{that}, (right|yes or no|correct|yes|no|or not)?",
        f"{that}?",
        f"(Would|Could) you say (that|) {that}?",
        f"Do you (think|see|agree) that {that}?",
        f"(Tell me|Say|Check|See|Let me know|Find out) (if|whether) {that}.",
        f"{_CAN_YOU} (tell me|see|check|say) (if|whether) {that}?",
        f"{_WISH} to know (if|whether) {that}.",
        f"I (think|say) {that}. (Right|Correct|Am I right|Is that so)?",
        f"I (wonder|ask myself|am not sure) (if|whether) {that}.",
        f"Answer yes or no: {that}.",
    )
